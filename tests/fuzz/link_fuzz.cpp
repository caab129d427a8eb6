// A program that sends, receives, waits, accepts and dies on a connection whose other side writes anywhere in
// the link: between its calls as the input says, and in every fourth run from a second thread while they go
// on. In some runs the connection has a kernel socket as well (link/far_socket.hpp), or the peer hands bytes
// over out of a pool, or the monitor has marked the connection as moved to the kernel; the input's last byte
// may add that it is captured, or that its link leads to another host.
#include "tests/fuzz/link/answers.hpp"
#include "tests/fuzz/link/capture.hpp"
#include "tests/fuzz/link/device.hpp"
#include "tests/fuzz/link/far_socket.hpp"
#include "tests/fuzz/link/peer.hpp"
#include "tests/fuzz/link/program.hpp"

using namespace sd;

namespace {

constexpr unsigned kSteps = 64;

/// In the upper half of an input's first byte.
constexpr unsigned kHasMoved = 12, kHandsOver = 13, kInRing = 14, kInSocket = 15;
/// The last byte of an input from here on says what there is besides.
constexpr uint8_t kBesides = 240;
constexpr unsigned kCaptured = 1, kOtherHost = 2, kConnected = 8;
/// Captured are new connections, too; without kCaptured: a connection is about to be joined.
constexpr unsigned kNewborn = 4;

/// What waits asks for an id, on each side's link.
void wait_once(sdfuzz::Process &process) {
    for (const unsigned side : {0U, 1U}) {
        const wire::BellReply thread{5, 1, 0, 0}, set{6, 1, 0, 0};
        process.monitor.answer(&thread, sizeof thread, nullptr, 0);
        process.monitor.answer(&set, sizeof set, nullptr, 0);
        sdfuzz::Program(process, side).wait_once();
        process.reset();
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sdfuzz::Process process;
    // It waits for work when all ends.
    static sdfuzz::Scribbler &scribbler = *new sdfuzz::Scribbler(process.link[0]->view);
    static const bool waited = (wait_once(process), true);
    static const bool recovers = (sdfuzz::recover_from_bad_pointers(), true);
    (void)waited;
    (void)recovers;
    const unsigned besides = size > 1 && data[size - 1] >= kBesides ? data[--size] : 0;
    sdfuzz::Answers answers;
    sdfuzz::Input in(data, size);
    const uint8_t how = in.take<uint8_t>();
    const unsigned side = how & 1, kind = how >> 4;
    {
        sdfuzz::Device device;
        sdfuzz::Capture capture;
        sdfuzz::Program program(process, side);
        sdfuzz::Peer peer{process.link[1 - side], 1 - side, sdfuzz::kFirstSlot};
        sdfuzz::FarSocket far;
        if (kind == kInRing || kind == kInSocket) {
            far.join(program.first(), *file_of(program.first()), kind == kInRing);
        } else if (kind == kHandsOver || kind == kHasMoved) {
            using What = sdfuzz::Answers::What;
            answers.make(process, kind == kHandsOver            ? What::pools
                                  : (besides & kConnected) != 0 ? What::connected
                                                                : What::socket);
        }
        if ((besides & kOtherHost) != 0) {
            device.begin(*process.link[side], sdfuzz::kFirstSlot);
        }
        if ((besides & kCaptured) != 0) {
            capture.begin(*file_of(program.first()), (besides & kNewborn) != 0);
        } else if ((besides & kNewborn) != 0 && !far.is_open()) {
            program.add(far.begin_in_kernel(process, side));
        }
        if ((how & 6) == 6) {
            scribbler.begin(in.take<uint64_t>());
        }
        for (unsigned step = 0; step < kSteps && !in.empty(); ++step) {
            const uint8_t who = in.take<uint8_t>();
            if (who >= 192 && far.is_open()) {
                Slot &s = peer.words();
                far.act(in, s.side[peer.side], s.side[side], peer.tx.tail);
                continue;
            }
            if (who >= 208 && kind == kHandsOver) {
                peer.hand_over(in);
                continue;
            }
            if (who >= 184 && who < 192 && capture.is_on()) {
                capture.act(in, file_of(program.first()));
                continue;
            }
            if (who >= 176 && who < 184 && device.is_used()) {
                sdfuzz::Device::act(in);
                continue;
            }
            if (who >= 168 && who < 176 && besides != 0) {
                program.act_otherwise(in);
                continue;
            }
            switch (who % 8) {
            case 0:
            case 1:
                peer.speak(in);
                break;
            case 2:
                peer.listen(in);
                break;
            case 3:
                if (in.below(4) == 0) {
                    peer.end(in);
                } else {
                    sdfuzz::scribble(in, process.link[0]->view);
                }
                break;
            default:
                program.act(in);
            }
        }
        scribbler.end();
    }
    process.reset();
    answers.close_left();
    return 0;
}
