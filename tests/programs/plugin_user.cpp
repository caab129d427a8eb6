// A library that has nothing but another one it needs.
extern "C" int plugin_close(int fd);
extern "C" __attribute__((visibility("default"))) int plugin_user_close(int fd) { return plugin_close(fd); }
