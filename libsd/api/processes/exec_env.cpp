// Putting LD_PRELOAD back into the environment of an executed program.
#include "libsd/api/processes/exec_env.hpp"
#include "libsd/api/real.hpp"
#include "libsd/base/start_section.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/objects.hpp"
#include "libsd/control/sandbox_state.hpp"
#include "libsd/control/text.hpp"
#include "libsd/cpu/call_numbers.hpp"
#include "libsd/layout/exec_table.hpp"
#include "libsd/vfs/descriptors/placeholder_cache.hpp"
#include "libsd/vfs/sharing/exec.hpp"
#include <cstdlib>
#include <cstring>

namespace sd {

namespace {

constexpr char kPreload[] = "LD_PRELOAD=";
constexpr size_t kPreloadSize = sizeof kPreload - 1;

/// This library as it stands in LD_PRELOAD; empty when it was loaded in another way.
char library[4096];
bool in_system_list = false;

/// Variables that libsd in the next program needs, as "NAME=value"; empty when they were not set.
struct Preserved {
    const char *name;
    char text[256];
};
constinit Preserved preserved[] = {{"SD_MONITOR=", {}}, {"SD_CONTROL_FD=", {}}, {"SD_LANDLOCKED=", {}}};
constexpr size_t kPreserved = sizeof preserved / sizeof preserved[0];

// sdrun's channel may have to make room for a descriptor of the program's; the variable that programs pass on
// then has the old number.
Preserved &presence = preserved[1], &landlock = preserved[2];
char presence_before[sizeof presence.text];
int presence_fd = -1;

bool starts_with(const char *s, const char *prefix) noexcept {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/// Whether `list`, separated by spaces or colons, has `entry` in it.
bool lists(const char *list, const char *entry) noexcept {
    size_t n = strlen(entry);
    while (*list) {
        size_t m = strcspn(list, ": ");
        if (m == n && memcmp(list, entry, n) == 0)
            return true;
        list += m;
        list += strspn(list, ": ");
    }
    return false;
}

const char *base_name(const char *path, size_t n) noexcept {
    const char *end = path + n;
    while (end > path && end[-1] != '/')
        --end;
    return end;
}

/// The library that sdrun --zero-copy preloads beside this one.
constexpr char kPages[] = "libsd-pages.so";

/// Copies the entries of `list` but for `entry` and kPages, with a colon between them.
void copy_others(const char *list, const char *entry, char *to) noexcept {
    const size_t left_out = strlen(entry);
    const char *const start = to;
    for (list += strspn(list, ": "); *list; list += strspn(list, ": ")) {
        const size_t n = strcspn(list, ": ");
        const char *const name = base_name(list, n);
        const bool pages = list + n - name == sizeof kPages - 1 && memcmp(name, kPages, sizeof kPages - 1) == 0;
        if (!pages && (n != left_out || memcmp(list, entry, n) != 0)) {
            if (to != start)
                *to++ = ':';
            memcpy(to, list, n);
            to += n;
        }
        list += n;
    }
    *to = '\0';
}

/// As the dynamic linker calls the object that this is, which may be the program.
const char *own_path() noexcept {
    static char program[4096];
    const char *path = program;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *found) {
            if (!contains(*info, reinterpret_cast<uintptr_t>(library)))
                return 0;
            *static_cast<const char **>(found) = info->dlpi_name;
            return 1;
        },
        &path);
    if (*path == '\0')
        sys::call(cpu::kReadlink, sys::arg("/proc/self/exe"), sys::arg(program), sizeof program - 1);
    return *path ? path : program;
}

/// Finds the entry of `list` with the file name of `path`, however it leads there ("libsd.so",
/// "$LIB/libsd.so"), and copies it.
void copy_entry(const char *list, const char *path, char *to, size_t room) noexcept {
    const char *wanted = base_name(path, strlen(path));
    while (*list) {
        const size_t m = strcspn(list, ": \t\n");
        const char *name = base_name(list, m);
        const auto n = static_cast<size_t>(list + m - name);
        if (n == strlen(wanted) && memcmp(name, wanted, n) == 0 && m < room) {
            memcpy(to, list, m);
            to[m] = '\0';
            return;
        }
        list += m;
        list += strspn(list, ": \t\n");
    }
}

void look_into_system_list(const char *path) noexcept {
    char text[4096], entry[4096] = {};
    const long fd = sys::call(SYS_openat, AT_FDCWD, sys::arg("/etc/ld.so.preload"), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    const long n = sys::read(static_cast<int>(fd), text, sizeof text - 1);
    sys::close(static_cast<int>(fd));
    text[n > 0 ? n : 0] = '\0';
    copy_entry(text, path, entry, sizeof entry);
    in_system_list = *entry != '\0';
}

/// Room for kExecVariable and a number.
constexpr size_t kTableText = sizeof kExecVariable + 12;

/// The name with its "=" and the number; where the text ends, behind its zero. snprintf is not
/// async-signal-safe.
char *write_number(char *to, const char *name, int number) noexcept {
    strcpy(to, name);
    to += strlen(name);
    char digits[12];
    size_t n = 0;
    do
        digits[n++] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    while (n > 0)
        *to++ = digits[--n];
    *to++ = '\0';
    return to;
}

} // namespace

void presence_moved(int from, int to) noexcept {
    if (from != presence_fd)
        return;
    presence_fd = to;
    write_number(presence.text, presence.name, to);
}

SD_START_CODE void follow_presence() noexcept {
    if (!presence.text[0])
        return;
    strcpy(presence_before, presence.text);
    presence_fd = decimal(presence.text + strlen(presence.name));
}

SD_START_CODE void remember_environment() noexcept {
    const char *path = own_path();
    for (char *const *e = environ; e && *e; ++e) {
        if (starts_with(*e, kPreload) && *path) {
            if (lists(*e + kPreloadSize, path) && strlen(path) < sizeof library)
                strcpy(library, path);
            else
                copy_entry(*e + kPreloadSize, path, library, sizeof library);
            continue;
        }
        for (Preserved &k : preserved)
            if (starts_with(*e, k.name) && strlen(*e) < sizeof k.text)
                strcpy(k.text, *e);
    }
    if (!*library && *path)
        look_into_system_list(path);
    if (landlock.text[0])
        landlocked.store(true, std::memory_order_relaxed);
}

void remember_landlock() noexcept {
    strcpy(landlock.text, "SD_LANDLOCKED=1");
    landlocked.store(true, std::memory_order_relaxed);
}

const char *preloaded_as() noexcept { return library; }
bool preloaded_everywhere() noexcept { return in_system_list; }

ExecEnvironment::ExecEnvironment(char *const *given, Loading there) noexcept : given_(given) {
    make_room_below(); // cached placeholders are nothing for the new program
    for (unsigned i = 0; i < kPreserved; ++i)
        if (preserved[i].text[0])
            missing_ |= 1u << i;
    preload_missing_ = library[0] != '\0';
    const bool stumbles = there == Loading::stumbles;
    preload_missing_ = preload_missing_ && !stumbles;
    if (!preload_missing_)
        missing_ = 0;
    table_ = exec_table_fd();
    for (; given && given[count_]; ++count_) {
        const char *e = given[count_];
        if (starts_with(e, kPreload) && preload_at_ < 0) {
            preload_at_ = static_cast<long>(count_);
            if (library[0] && lists(e + kPreloadSize, library)) {
                preload_missing_ = false;
                preload_taken_out_ = stumbles;
            }
        }
        for (unsigned i = 0; i < kPreserved; ++i)
            if (starts_with(e, preserved[i].name))
                missing_ &= ~(1u << i);
        if (presence_fd >= 0 && strcmp(e, presence_before) == 0 && strcmp(e, presence.text) != 0)
            presence_at_ = static_cast<long>(count_);
    }
    if (as_given())
        return;
    words_ = count_ + 3 + kPreserved;
    bytes_ = kTableText;
    if (preload_taken_out_)
        bytes_ += strlen(given[preload_at_]) + 1;
    if (preload_missing_)
        bytes_ += kPreloadSize + strlen(library) + 1 + (preload_at_ < 0 ? 0 : strlen(given[preload_at_]));
}

char *const *ExecEnvironment::build(char **words, char *bytes) const noexcept {
    if (as_given())
        return given_;
    // The table comes first: one that is left over from an earlier exec is not found then.
    const size_t first = table_ >= 0;
    if (first) {
        words[0] = bytes;
        bytes = write_number(bytes, kExecVariable, table_);
    }
    if (count_)
        memcpy(words + first, given_, count_ * sizeof *words);
    if (presence_at_ >= 0)
        words[first + static_cast<size_t>(presence_at_)] = const_cast<char *>(presence.text);
    size_t n = first + count_;
    if (preload_taken_out_) {
        strcpy(bytes, kPreload);
        copy_others(given_[preload_at_] + kPreloadSize, library, bytes + kPreloadSize);
        char **const at = words + first + preload_at_;
        if (bytes[kPreloadSize])
            *at = bytes;
        else
            memmove(at, at + 1, (--n - first - static_cast<size_t>(preload_at_)) * sizeof *at);
    }
    if (preload_missing_) {
        strcpy(bytes, kPreload);
        strcat(bytes, library);
        if (preload_at_ >= 0) {
            const char *rest = given_[preload_at_] + kPreloadSize;
            if (*rest) {
                strcat(bytes, ":");
                strcat(bytes, rest);
            }
            words[first + static_cast<size_t>(preload_at_)] = bytes;
        } else {
            words[n++] = bytes;
        }
    }
    for (unsigned i = 0; i < kPreserved; ++i)
        if (missing_ >> i & 1)
            words[n++] = preserved[i].text;
    words[n] = nullptr;
    return words;
}

} // namespace sd
