/* The BPF programs themselves, for this processor. */
#include "monitor/discovery/option.bpf.c"
