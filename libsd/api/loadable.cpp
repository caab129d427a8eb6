// Whether a program that is about to be executed would have this library loaded into it: what the kernel and the dynamic linker look at.
//
// Where it cannot be told, the answer is "no" if the program may run without the library, since that is the answer that keeps a connection
// working either way. Security modules that let a program change its domain (AppArmor's "Px") are not seen.
#include "libsd/api/loadable.hpp"
#include "libsd/api/exec_env.hpp"
#include "libsd/api/path_search.hpp"
#include "libsd/control/append.hpp"
#include "libsd/control/hidden_fd.hpp"
#include <elf.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace sd {

namespace {

constexpr int kMostInterpreters = 4; ///< scripts whose interpreter is a script: the kernel's own limit
constexpr char kLinker[] = "ld-linux-x86-64.so.2";

class Descriptor {
  public:
    explicit Descriptor(long fd) noexcept : fd_(static_cast<int>(fd)) {}
    ~Descriptor() {
        if (fd_ >= 0)
            sys::close(fd_);
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    bool open() const noexcept { return fd_ >= 0; }
    int number() const noexcept { return fd_; }

  private:
    int fd_;
};

long open_file(int dir, const char *path, int flags) noexcept {
    return sys::call(SYS_openat, dir, sys::arg(path), O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, 0);
}

/// The file that execveat would execute. `readable` is false when only its attributes can be had.
long open_program(int dir, const char *path, int flags, bool *readable) noexcept {
    char name[32];
    if (!*path && (flags & AT_EMPTY_PATH)) {
        if (dir < 0)
            return -EBADF;
        descriptor_name(dir, name); // a file of its own: the position of the program's stays where it is
        dir = AT_FDCWD;
        path = name;
    }
    const int follow = flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0;
    long fd = open_file(dir, path, O_RDONLY | follow);
    *readable = fd >= 0;
    if (fd == -EACCES)
        fd = open_file(dir, path, O_PATH | follow);
    return fd;
}

bool has_capabilities(int fd, bool readable) noexcept {
    char value[64], name[32];
    descriptor_name(fd, name);
    const long r =
        readable ? sys::call(SYS_fgetxattr, fd, sys::arg("security.capability"), sys::arg(value), sizeof value)
                 : sys::call(SYS_getxattr, sys::arg(name), sys::arg("security.capability"), sys::arg(value),
                             sizeof value);
    return r > 0;
}

/// Whether the kernel would start it with AT_SECURE, where the dynamic linker ignores LD_PRELOAD.
bool secure(int fd, const struct stat &file, bool readable) noexcept {
    const auto uid = static_cast<uid_t>(sys::call(SYS_getuid)), gid = static_cast<gid_t>(sys::call(SYS_getgid));
    auto new_uid = static_cast<uid_t>(sys::call(SYS_geteuid)),
         new_gid = static_cast<gid_t>(sys::call(SYS_getegid));
    const uid_t old_uid = new_uid;
    const gid_t old_gid = new_gid;
    struct statfs mount {};
    const bool believed = (sys::call(SYS_fstatfs, fd, sys::arg(&mount)) < 0 || !(mount.f_flags & ST_NOSUID)) &&
                          sys::call(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1;
    if (believed) {
        if (file.st_mode & S_ISUID)
            new_uid = file.st_uid;
        if ((file.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
            new_gid = file.st_gid;
    }
    if (new_uid != uid || new_gid != gid || new_uid != old_uid || new_gid != old_gid)
        return true;
    return uid != 0 && !(mount.f_flags & ST_NOSUID) && has_capabilities(fd, readable);
}

/// Of an ELF file: for this machine, and started through the C library's dynamic linker.
bool linked(int fd, const Elf64_Ehdr &header) noexcept {
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_machine != EM_X86_64 || header.e_phentsize != sizeof(Elf64_Phdr))
        return false;
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr part;
        if (sys::call(SYS_pread64, fd, sys::arg(&part), sizeof part,
                      static_cast<long>(header.e_phoff + i * sizeof part)) != sizeof part)
            return false;
        if (part.p_type != PT_INTERP)
            continue;
        char name[PATH_MAX];
        if (part.p_filesz < 2 || part.p_filesz > sizeof name ||
            sys::call(SYS_pread64, fd, sys::arg(name), static_cast<long>(part.p_filesz),
                      static_cast<long>(part.p_offset)) != static_cast<long>(part.p_filesz))
            return false;
        name[part.p_filesz - 1] = '\0';
        const char *slash = strrchr(name, '/');
        return strcmp(slash ? slash + 1 : name, kLinker) == 0;
    }
    return false;
}

/// The dynamic linker of the new program has to find the library under the name it has in LD_PRELOAD.
bool library_in_reach() noexcept {
    const char *path = preloaded_as();
    if (!*path)
        return preloaded_everywhere(); // else it came with this program
    if (!strchr(path, '/') || strchr(path, '$'))
        return true; // searched for as any library
    return Descriptor(open_file(AT_FDCWD, path, O_RDONLY)).open();
}

/// "#!" and what follows, cut to the interpreter's name; nullptr where the kernel finds none.
char *interpreter_of(char *line) noexcept {
    char *name = line + 2 + strspn(line + 2, " \t");
    name[strcspn(name, " \t\n")] = '\0';
    return *name ? name : nullptr;
}

enum class Verdict { load, refuse, not_a_program };

Verdict judge(int dir, const char *path, int flags, int depth) noexcept {
    bool readable = false;
    SpareNumbers spare;
    Descriptor program(open_program(dir, path, flags, &readable));
    struct stat file {};
    if (!program.open() || sys::call(SYS_fstat, program.number(), sys::arg(&file)) < 0 ||
        !S_ISREG(file.st_mode) || !(file.st_mode & 0111))
        return Verdict::not_a_program;
    char head[257] = {}; // the kernel looks at 256 bytes
    const long n = readable ? sys::call(SYS_pread64, program.number(), sys::arg(head), sizeof head - 1, 0) : 0;
    if (n >= 2 && head[0] == '#' && head[1] == '!') {
        const char *interpreter = interpreter_of(head);
        if (!interpreter || depth == kMostInterpreters)
            return Verdict::not_a_program;
        return judge(AT_FDCWD, interpreter, 0, depth + 1);
    }
    if (secure(program.number(), file, readable))
        return Verdict::refuse;
    if (!readable)
        return Verdict::load; // may be executed but not read: most likely linked as almost all are
    Elf64_Ehdr header;
    memcpy(&header, head, sizeof header);
    if (n < static_cast<long>(sizeof(Elf32_Ehdr)) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return Verdict::not_a_program;
    return linked(program.number(), header) ? Verdict::load : Verdict::refuse;
}

Loadable decide(Verdict v) noexcept {
    return v == Verdict::refuse || (v == Verdict::load && !library_in_reach()) ? Loadable::no : Loadable::yes;
}

} // namespace

Loadable loadable(int dirfd, const char *path, int flags) noexcept {
    return path ? decide(judge(dirfd, path, flags, 0)) : Loadable::yes;
}

Loadable loadable_from_path(const char *file) noexcept {
    if (!file)
        return Loadable::yes;
    Verdict verdict = Verdict::not_a_program;
    const long found = search_path(file, [&verdict](const char *path) -> long {
        const long r = sys::call(SYS_faccessat2, AT_FDCWD, sys::arg(path), X_OK, AT_EACCESS);
        if (r < 0 && r != -ENOSYS)
            return r;
        struct stat s {};
        if (const long t = sys::call(SYS_newfstatat, AT_FDCWD, sys::arg(path), sys::arg(&s), 0); t < 0)
            return t;
        if (!S_ISREG(s.st_mode))
            return -EACCES;
        verdict = judge(AT_FDCWD, path, 0, 0);
        return 0;
    });
    // What is no program is given to the shell.
    if (found == 0 && verdict == Verdict::not_a_program)
        verdict = judge(AT_FDCWD, "/bin/sh", 0, 0);
    return decide(verdict);
}

} // namespace sd
