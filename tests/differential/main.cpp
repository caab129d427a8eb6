// The differential runner: the same random sequences of calls on kernel sockets and under libsd.
#include "tests/differential/generate.hpp"
#include "tests/differential/judge.hpp"
#include "tests/differential/print_c.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sd::differential {

namespace {

struct Options {
    uint64_t first = 1;
    long count = 1;
    int jobs = 2;
    bool self_check = false, list = false;
    long most_failures = 5;
    long tolerated = 0;
    int budget = 150;
    std::string name = "differential";
    Features features;
    Setting setting;
};

// Shared by the workers.
struct Progress {
    long next = 0, same = 0, different = 0, unsteady = 0, undecided = 0, joined = 0;
    uint64_t failed[64];
};

[[noreturn]] void usage(int status) {
    std::cout << "Usage: differential [OPTIONS]\n"
                 "Performs random sequences of socket calls on kernel sockets and under libsd, and compares "
                 "what can be observed.\n\n"
                 "  --seed N        one seed; a difference is shrunk and printed as a C program\n"
                 "  --from N --count N   many seeds\n"
                 "  --fresh N       N seeds that nobody has tried before (they are printed when they fail)\n"
                 "  --jobs N        sequences at a time (2)\n"
                 "  --self-check    compare the kernel with itself\n"
                 "  --list          print the sequence of a seed, run nothing\n"
                 "  --users two     the two sides are strangers to each other (needs root)\n"
                 "  --users given-up     children of fork give up root\n"
                 "  --apart         actors are in two network namespaces, whose connections are discovered\n"
                 "                  (needs root)\n"
                 "  --without WHAT  generate no exec, passing, signals\n"
                 "  --name NAME     of the test, for SD_TEST_RESULTS\n"
                 "  --tolerate N    so many failing seeds are shown, and are no failure\n"
                 "  --failures N    stop after so many failing seeds (5)\n"
                 "  --env NAME=VALUE     for the accelerated side\n"
                 "  --no-shrink     show failing sequences as they are\n";
    std::exit(status);
}

Options parse(int argc, char **argv) {
    Options options;
    const char *build = std::getenv("SD_BUILD_DIR");
    options.setting.build =
        build != nullptr
            ? build
            : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path();
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto value = [&]() -> std::string {
            if (i + 1 >= argc) {
                usage(2);
            }
            return argv[++i];
        };
        if (word == "--seed") {
            options.first = std::stoull(value());
            options.count = 1;
        } else if (word == "--from") {
            options.first = std::stoull(value());
        } else if (word == "--count") {
            options.count = std::stol(value());
        } else if (word == "--fresh") {
            options.count = std::stol(value());
            options.first = (static_cast<uint64_t>(std::random_device()()) << 20) + 1000000;
        } else if (word == "--jobs") {
            options.jobs = std::stoi(value());
        } else if (word == "--self-check") {
            options.self_check = true;
        } else if (word == "--list") {
            options.list = true;
        } else if (word == "--name") {
            options.name = value();
        } else if (word == "--failures") {
            options.most_failures = std::stol(value());
        } else if (word == "--tolerate") {
            options.tolerated = std::stol(value());
        } else if (word == "--env") {
            options.setting.environment.push_back(value());
        } else if (word == "--no-shrink") {
            options.budget = 0;
        } else if (word == "--users") {
            const std::string who = value();
            if (who != "two" && who != "given-up") {
                usage(2);
            }
            options.features.users = options.setting.users = who == "two" ? Users::two : Users::given_up;
        } else if (word == "--apart") {
            options.features.apart = options.setting.apart = true;
        } else if (word == "--without") {
            const std::string what = value();
            options.features.exec &= what != "exec";
            options.features.passing &= what != "passing";
            options.features.signals &= what != "signals";
        } else {
            usage(word == "--help" ? 0 : 2);
        }
    }
    return options;
}

void show_failure(const Options &options, Judge &judge, const Sequence &sequence) {
    // At once: shortening it takes a while, and may not end in time.
    std::cout << "seed " + std::to_string(sequence.seed) + " differs: " + judge.first_impression() + "\n"
              << std::flush;
    const Sequence shorter = options.budget > 0 ? judge.shortest(sequence, options.budget) : sequence;
    std::ostringstream text;
    text << "\n=== seed " << sequence.seed << " differs; again with: differential --seed " << sequence.seed
         << "\n"
         << judge.explain(shorter);
    if (options.count == 1 && !options.setting.apart) { // one program has one network namespace
        text << "\n" << c_program(shorter);
    }
    std::cout << text.str() << std::flush;
}

void work(const Options &options, Progress &progress, int worker) {
    Setting setting = options.setting;
    setting.directory += "/" + std::to_string(worker);
    std::filesystem::create_directory(setting.directory);
    Judge judge(setting, options.self_check);
    for (;;) {
        const long index = __atomic_fetch_add(&progress.next, 1, __ATOMIC_RELAXED);
        if (index >= options.count ||
            __atomic_load_n(&progress.different, __ATOMIC_RELAXED) >= options.most_failures) {
            __atomic_fetch_add(&progress.joined, judge.joined(), __ATOMIC_RELAXED);
            return;
        }
        const Sequence sequence = generate(options.first + static_cast<uint64_t>(index), options.features);
        switch (judge.judge(sequence)) {
        case Verdict::same:
            __atomic_fetch_add(&progress.same, 1, __ATOMIC_RELAXED);
            break;
        case Verdict::unsteady:
            __atomic_fetch_add(&progress.unsteady, 1, __ATOMIC_RELAXED);
            std::cout << "seed " + std::to_string(sequence.seed) +
                             " differed once, but not when repeated with patience: " + judge.first_impression() +
                             "\n"
                      << std::flush;
            break;
        case Verdict::undecided:
            __atomic_fetch_add(&progress.undecided, 1, __ATOMIC_RELAXED);
            std::cout << "seed " + std::to_string(sequence.seed) +
                             ": the kernel itself does not do the same twice: " + judge.first_impression() + "\n"
                      << std::flush;
            break;
        case Verdict::different: {
            const long number = __atomic_fetch_add(&progress.different, 1, __ATOMIC_RELAXED);
            if (number < 64) {
                progress.failed[number] = sequence.seed;
            }
            show_failure(options, judge, sequence);
        }
        }
    }
}

// One line per seed that was decided, for scripts/lib/count_results.py.
void leave_results(const Options &options, const Progress &progress) {
    const char *directory = std::getenv("SD_TEST_RESULTS");
    if (directory == nullptr || *directory == '\0') {
        return;
    }
    std::ofstream out(std::string(directory) + "/" + options.name + ".results");
    const long hundreds = (progress.same + progress.unsteady) / 100;
    for (long i = 0; i < hundreds; ++i) {
        out << "passed " << options.name << ": 100 sequences\n";
    }
    for (long i = 0; i < std::min(progress.different, 64l); ++i) {
        out << (progress.different > options.tolerated ? "failed " : "skipped ") << options.name << ": seed "
            << progress.failed[i] << "\n";
    }
}

int run(int argc, char **argv) {
    Options options = parse(argc, argv);
    if (options.list) {
        const Sequence sequence = generate(options.first, options.features);
        std::cout << report(sequence, {}, {});
        return 0;
    }
    if ((options.setting.users != Users::one || options.setting.apart) && geteuid() != 0) {
        std::cout << "left out, as it needs root" << std::endl;
        return 77;
    }
    std::string scratch = "/tmp/sd-differential-XXXXXX";
    if (mkdtemp(scratch.data()) == nullptr) {
        throw std::runtime_error("mkdtemp");
    }
    options.setting.directory = scratch;
    provide_programs(options.setting);
    auto *progress = static_cast<Progress *>(
        mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const auto begin = std::chrono::steady_clock::now();
    std::cout << "seeds " << options.first << " to "
              << options.first + static_cast<uint64_t>(options.count) - 1 << std::endl;
    std::vector<pid_t> workers;
    for (int i = 0; i < std::min<long>(options.jobs, options.count); ++i) {
        const pid_t pid = fork();
        if (pid == 0) {
            try {
                work(options, *progress, i);
                std::cout.flush();
                _exit(0);
            } catch (const std::exception &error) {
                std::cout << "worker: " << error.what() << std::endl;
                _exit(1);
            }
        }
        workers.push_back(pid);
    }
    bool well = true;
    for (const pid_t pid : workers) {
        int status = 0;
        waitpid(pid, &status, 0);
        well = well && status == 0;
    }
    std::error_code ignored;
    std::filesystem::remove_all(scratch, ignored);
    leave_results(options, *progress);
    const auto seconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count() /
        1000.0;
    std::cout << progress->same + progress->unsteady << " the same (" << progress->unsteady
              << " of them only when repeated), " << progress->different << " different, "
              << progress->undecided << " undecided by the kernel, " << seconds << " s" << std::endl;
    const char *paths = std::getenv("SD_TEST_PATHS");
    if (options.setting.apart || (paths != nullptr && *paths != '\0')) {
        std::cout << progress->joined << " ends of the kernel's connections were joined" << std::endl;
        well = well && (progress->joined > 0 || options.self_check);
    }
    return well && progress->different <= options.tolerated && progress->same > 0 ? 0 : 1;
}

} // namespace

} // namespace sd::differential

int main(int argc, char **argv) {
    try {
        return sd::differential::run(argc, argv);
    } catch (const std::exception &error) {
        std::cerr << "differential: " << error.what() << std::endl;
        return 1;
    }
}
