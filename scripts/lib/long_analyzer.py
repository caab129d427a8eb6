"""clang's path-sensitive analyzer over what strangers speak to: the monitor, its tools, and libsd/control."""
from long_includes import look_at_each

# Padding is not a mistake; each object is somebody's until the program ends, and LeakSanitizer looks at that.
CHECKS = "-*,clang-analyzer-*,-clang-analyzer-optin.performance.Padding,-clang-analyzer-cplusplus.NewDeleteLeaks"


def run(build_dir, source_dir, record):
    return look_at_each("clang's analyzer over monitor and libsd/control", "tidy.py", ["monitor", "libsd/control"], build_dir, source_dir,
                        record, SD_TIDY_CHECKS=CHECKS)
