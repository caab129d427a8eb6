"""The tests of public allocators, as Debian's source packages have them: allocator_tests.py

glibc's own of malloc (those that ask for what malloc(3) and its relatives say), jemalloc's integration tests, and mimalloc's
stress test, which knows the standard functions too. They are built, not changed, and stay in $SD_CACHE as allocators-KEY:

    glibc/NAME, jemalloc/NAME, mimalloc/NAME    programs
    jemalloc/NAME.conf                          what MALLOC_CONF is to be
    jemalloc/libjemalloc.so.2                   for its programs

Needs the network, to make them.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))
import debian_source  # noqa: E402
from first_system import cache, recipe, run, settle  # noqa: E402

# Not here: those that need more of the C library's own build, or look into its allocator (tst-safe-linking,
# tst-dynarray*, tst-interpose-*, tst-mallocstate), and tst-malloc-usable, which is about MALLOC_CHECK_.
GLIBC = """mallocbug tst-calloc tst-free-errno tst-mallinfo2 tst-malloc tst-malloc-backtrace tst-malloc-fork-deadlock
    tst-malloc-stats-cancellation tst-malloc-tcache-leak tst-malloc-thread-exit tst-malloc-thread-fail tst-malloc-too-large
    tst-malloc_info tst-mallocalign1 tst-mallocfork tst-mallocfork2 tst-mallocfork3 tst-mallopt tst-memalign tst-mxfast
    tst-obstack tst-posix_memalign tst-pvalloc tst-realloc tst-reallocarray tst-tcfree1 tst-tcfree2 tst-tcfree3 tst-trim1
    tst-valloc""".split()
JEMALLOC = """MALLOCX_ARENA aligned_alloc allocated extent malloc mallocx overflow posix_memalign rallocx sdallocx slab_sizes
    thread_arena thread_tcache_enabled xallocx""".split()
COMPILE = ("gcc", "-std=gnu11", "-w", "-D_GNU_SOURCE")
# Of glibc's build: headers, and what the makefile defines.
HEADERS = ("include/libc-diag.h", "include/array_length.h", "test-skeleton.c", "sysdeps/generic/malloc-size.h",
           "sysdeps/generic/malloc-alignment.h")
DEFINED = ("TIMEOUTFACTOR=5", *(f'{name}=""' for name in (
    "SRCDIR_PATH", "OBJDIR_PATH", "OBJDIR_ELF_LDSO_PATH", "INSTDIR_PATH", "LIBDIR_PATH", "BINDIR_PATH", "SBINDIR_PATH",
    "ROOTSBINDIR_PATH", "COMPLOCALEDIR_PATH", "SYSCONFDIR_PATH", "SLIBDIR_PATH", "RTLD_PATH", "ROOT_PATH")))


def place():
    return cache() / f"allocators-{recipe(__file__)}"


def glibc(source, into, scratch):
    """Its test driver's library, as far as it can be built outside of it, and the tests."""
    for header in HEADERS:
        shutil.copy(source / header, scratch)
    (scratch / "support").symlink_to(source / "support")
    objects = []
    for file in (source / "support").glob("*.c"):
        made = scratch / f"{file.stem}.o"
        if subprocess.run([*COMPILE, "-O1", "-include", "limits.h", *(f"-D{d}" for d in DEFINED), f"-I{scratch}",
                           f"-I{source / 'support'}", "-c", file, "-o", made], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            objects.append(made)
    run("ar", "rcs", scratch / "libsupport.a", *objects)
    for name in GLIBC:
        run(*COMPILE, "-O2", "-rdynamic", "-DINTERNAL_SIZE_T=size_t", f"-I{scratch}", f"-I{source / 'malloc'}",
            source / "malloc" / f"{name}.c", scratch / "libsupport.a", "-lpthread", "-o", into / name)


def jemalloc(source, into, scratch):
    tree = scratch / "jemalloc"
    shutil.copytree(source, tree, symlinks=True)
    run("./configure", "--disable-cxx", "EXTRA_CFLAGS=-w", cwd=tree, stdout=subprocess.DEVNULL)
    run("make", f"-j{os.cpu_count()}", "-s", "tests_integration", cwd=tree, stdout=subprocess.DEVNULL)
    shutil.copy(tree / "lib/libjemalloc.so.2", into)
    for name in JEMALLOC:
        shutil.copy(tree / "test/integration" / name, into)
        script = tree / "test/integration" / f"{name}.sh"
        said = re.findall(r'MALLOC_CONF="(.*)"', script.read_text("utf-8")) if script.exists() else []
        (into / f"{name}.conf").write_text(said[-1] if said else "", encoding="utf-8")


def mimalloc(source, into, _):
    run(*COMPILE, "-O2", "-DUSE_STD_MALLOC", source / "test/test-stress.c", "-lpthread", "-o", into / "test-stress")


def make():
    """Makes them unless they are there; their folder."""
    done = place()
    if done.exists():
        return done
    sources = cache() / "allocator-sources"
    sources.mkdir(parents=True, exist_ok=True)
    new, scratch = done.with_suffix(".new"), done.with_suffix(".scratch")
    for build in (glibc, jemalloc, mimalloc):
        debian_source.fetch(build.__name__, str(sources))
    for folder in (new, scratch):
        shutil.rmtree(folder, ignore_errors=True)
    for build in (glibc, jemalloc, mimalloc):
        print(f"building the tests of {build.__name__}", file=sys.stderr, flush=True)
        for folder in (new, scratch):
            (folder / build.__name__).mkdir(parents=True)
        build(pathlib.Path(debian_source.place(build.__name__, str(sources))), new / build.__name__, scratch / build.__name__)
    shutil.rmtree(scratch)
    settle(new, done, "allocators-*")
    return done


if __name__ == "__main__":
    print(make())
