// The monitor's configuration file: whatever it holds, it is taken or refused with a line that says why.
#include "monitor/service/config.hpp"

#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int file = memfd_create("config", 0);
    static const std::string path = "/proc/self/fd/" + std::to_string(file);
    if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) {
        abort();
    }
    try {
        (void)sd::monitor::load_config(path, {});
    } catch (const sd::monitor::ConfigError &error) {
        if (std::string(error.what()).find(path) == std::string::npos) {
            abort(); // it does not say where
        }
    }
    return 0;
}
