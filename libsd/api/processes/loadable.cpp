// Whether a program that is about to be executed would have this library loaded into it: what the kernel and
// the dynamic linker look at.
//
// Where it cannot be told, the answer is "no" if the program may run without the library, since that is the
// answer that keeps a connection working either way. Security modules that let a program change its domain
// (AppArmor's "Px") are not seen.
#include "libsd/api/processes/loadable.hpp"
#include "libsd/api/processes/exec_env.hpp"
#include "libsd/api/processes/path_search.hpp"
#include "libsd/control/hidden_fd.hpp"
#include "libsd/control/text.hpp"
#include "libsd/cpu/elf.hpp"
#include <elf.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace sd {

namespace {

constexpr int kMostInterpreters = 4; ///< scripts whose interpreter is a script: the kernel's own limit

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

bool read_at(int fd, void *to, size_t n, uint64_t at) noexcept {
    return sys::call(SYS_pread64, fd, sys::arg(to), static_cast<long>(n), static_cast<long>(at)) ==
           static_cast<long>(n);
}

/// An ELF file of this machine, as far as the dynamic linker's part in it goes.
class Image {
  public:
    explicit Image(int fd) noexcept : fd_(fd) {
        if (!read_at(fd, &header_, sizeof header_, 0))
            header_ = {};
    }
    bool is_elf() const noexcept { return memcmp(header_.e_ident, ELFMAG, SELFMAG) == 0; }
    bool for_this_machine() const noexcept {
        return header_.e_ident[EI_CLASS] == ELFCLASS64 && header_.e_ident[EI_DATA] == cpu::kByteOrder &&
               header_.e_machine == cpu::kMachine && header_.e_phentsize == sizeof(Elf64_Phdr);
    }

    /// The first part of this type.
    bool find(uint32_t type, Elf64_Phdr &part) const noexcept {
        for (unsigned i = 0; i < header_.e_phnum; ++i)
            if (!read_at(fd_, &part, sizeof part, header_.e_phoff + i * sizeof part))
                return false;
            else if (part.p_type == type)
                return true;
        return false;
    }

    /// What PT_INTERP says.
    bool interpreter(char (&name)[PATH_MAX]) const noexcept {
        Elf64_Phdr part;
        if (!find(PT_INTERP, part) || part.p_filesz < 2 || part.p_filesz > sizeof name ||
            !read_at(fd_, name, part.p_filesz, part.p_offset))
            return false;
        name[part.p_filesz - 1] = '\0';
        return true;
    }

    /// Is this glibc's dynamic linker? By its own name for itself, since a file of that name may be a link to
    /// musl's.
    bool is_linker() const noexcept {
        Elf64_Phdr part;
        if (!for_this_machine() || !find(PT_DYNAMIC, part))
            return false;
        uint64_t names = 0, own = 0;
        bool named = false;
        Elf64_Dyn d[16];
        for (uint64_t done = 0; done + sizeof(Elf64_Dyn) <= part.p_filesz; done += sizeof d) {
            const uint64_t left = part.p_filesz - done, n = left < sizeof d ? left : sizeof d;
            if (!read_at(fd_, d, n, part.p_offset + done))
                return false;
            for (unsigned i = 0; i < n / sizeof *d; ++i)
                if (d[i].d_tag == DT_STRTAB) {
                    names = d[i].d_un.d_ptr;
                } else if (d[i].d_tag == DT_SONAME) {
                    own = d[i].d_un.d_val;
                    named = true;
                }
        }
        char name[sizeof cpu::kLinkerName];
        return named && read_at(fd_, name, sizeof name, in_file(names) + own) &&
               memcmp(name, cpu::kLinkerName, sizeof name) == 0;
    }

  private:
    uint64_t in_file(uint64_t address) const noexcept {
        Elf64_Phdr part;
        for (unsigned i = 0; i < header_.e_phnum; ++i)
            if (read_at(fd_, &part, sizeof part, header_.e_phoff + i * sizeof part) &&
                part.p_type == PT_LOAD && address - part.p_vaddr < part.p_filesz)
                return address - part.p_vaddr + part.p_offset;
        return address;
    }

    const int fd_;
    Elf64_Ehdr header_;
};

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

enum class Verdict { load, ignore, stumble, not_a_program };

/// Of a program that is started through a dynamic linker, static, or one itself.
Verdict judge_image(const Image &program) noexcept {
    if (!program.is_elf())
        return Verdict::not_a_program;
    if (!program.for_this_machine())
        return Verdict::stumble;
    char name[PATH_MAX];
    if (!program.interpreter(name))
        // Or a dynamic linker, named by the user: what it starts may bring a C library of its own, and loads
        // the library or not
        return Verdict::ignore;
    const Descriptor linker(open_file(AT_FDCWD, name, O_RDONLY));
    if (!linker.open())
        return Verdict::load; // it may be executed but not read, or the exec will fail
    return Image(linker.number()).is_linker() ? Verdict::load : Verdict::stumble;
}

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
        return Verdict::ignore;
    if (!readable)
        return Verdict::load; // may be executed but not read: most likely linked as almost all are
    return judge_image(Image(program.number()));
}

Loading decide(Verdict v) noexcept {
    switch (v) {
    case Verdict::load:
        return library_in_reach() ? Loading::loads : Loading::stumbles;
    case Verdict::ignore: // and where its children look for the library there must be one
        return library_in_reach() ? Loading::ignores : Loading::stumbles;
    case Verdict::stumble:
        return Loading::stumbles;
    case Verdict::not_a_program:
        break;
    }
    return Loading::loads;
}

} // namespace

Loading loading_of(int dirfd, const char *path, int flags) noexcept {
    return path ? decide(judge(dirfd, path, flags, 0)) : Loading::loads;
}

Loading loading_from_path(const char *file) noexcept {
    if (!file)
        return Loading::loads;
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
