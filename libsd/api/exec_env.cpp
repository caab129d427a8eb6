// Putting LD_PRELOAD back into the environment of an executed program.
#include "libsd/api/exec_env.hpp"
#include "libsd/api/real.hpp"
#include <cstring>
#include <dlfcn.h>

namespace sd {

namespace {

constexpr char kPreload[] = "LD_PRELOAD=";
constexpr size_t kPreloadSize = sizeof kPreload - 1;

/// This library as it stands in LD_PRELOAD; empty when it was loaded in another way, which then works for the next program too.
char library[4096];

/// Variables that libsd in the next program needs, as "NAME=value"; empty when they were not set.
struct Kept {
    const char *name;
    char text[256];
};
constinit Kept kept[] = {{"SD_MONITOR=", {}}, {"SD_CONTROL_FD=", {}}};

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

} // namespace

void remember_environment() noexcept {
    Dl_info info{};
    for (char *const *e = environ; e && *e; ++e) {
        if (starts_with(*e, kPreload)) {
            if (dladdr(library, &info) && info.dli_fname && strlen(info.dli_fname) < sizeof library &&
                lists(*e + kPreloadSize, info.dli_fname))
                strcpy(library, info.dli_fname);
            continue;
        }
        for (Kept &k : kept)
            if (starts_with(*e, k.name) && strlen(*e) < sizeof k.text)
                strcpy(k.text, *e);
    }
}

ExecEnvironment::ExecEnvironment(char *const *given) noexcept : given_(given) {
    for (unsigned i = 0; i < sizeof kept / sizeof kept[0]; ++i)
        if (kept[i].text[0])
            missing_ |= 1u << i;
    preload_missing_ = library[0] != '\0';
    if (!preload_missing_)
        missing_ = 0;
    for (; given && given[count_]; ++count_) {
        const char *e = given[count_];
        if (starts_with(e, kPreload) && preload_at_ < 0) {
            preload_at_ = static_cast<long>(count_);
            if (library[0] && lists(e + kPreloadSize, library))
                preload_missing_ = false;
        }
        for (unsigned i = 0; i < sizeof kept / sizeof kept[0]; ++i)
            if (starts_with(e, kept[i].name))
                missing_ &= ~(1u << i);
    }
    if (!preload_missing_ && !missing_)
        return;
    words_ = count_ + 2 + sizeof kept / sizeof kept[0];
    if (preload_missing_)
        bytes_ = kPreloadSize + strlen(library) + 1 + (preload_at_ < 0 ? 0 : strlen(given[preload_at_]));
}

char *const *ExecEnvironment::build(char **words, char *bytes) const noexcept {
    if (!preload_missing_ && !missing_)
        return given_;
    if (count_)
        memcpy(words, given_, count_ * sizeof *words);
    size_t n = count_;
    if (preload_missing_) {
        strcpy(bytes, kPreload);
        strcat(bytes, library);
        if (preload_at_ >= 0) {
            const char *rest = given_[preload_at_] + kPreloadSize;
            if (*rest) {
                strcat(bytes, ":");
                strcat(bytes, rest);
            }
            words[preload_at_] = bytes;
        } else {
            words[n++] = bytes;
        }
    }
    for (unsigned i = 0; i < sizeof kept / sizeof kept[0]; ++i)
        if (missing_ >> i & 1)
            words[n++] = kept[i].text;
    words[n] = nullptr;
    return words;
}

} // namespace sd
