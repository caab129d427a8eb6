// The C library's own versions of the functions that libsd.so replaces.
