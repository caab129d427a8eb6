// The monitor's configuration file: whatever it holds, it is taken or refused with a line that says why.
#include "monitor/service/config.hpp"

#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

/// A file that the configuration can name: /proc/self/fd/NUMBER.
void keep_file(int number, const std::string &text, mode_t mode = 0600) {
    const int made = memfd_create("named", 0);
    if (made < 0 || write(made, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        fchmod(made, mode) != 0 || dup2(made, number) != number || close(made) != 0) {
        abort();
    }
}

/// Keys, certificates, and what is wrong with such files.
bool keep_files() {
    keep_file(100, std::string(64, 'a') + "\n");
    keep_file(101, std::string(64, 'b'));
    keep_file(102, "-----BEGIN CERTIFICATE-----\n");
    keep_file(103, "-----BEGIN PRIVATE KEY-----\n");
    keep_file(104, std::string(70000, 'a'));
    keep_file(105, std::string(64, 'c'), 0644);
    return true;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const bool kept = keep_files();
    (void)kept;
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
