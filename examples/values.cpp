// A key-value server that answers from where a value lies.
//
// A request is a line, "set KEY BYTES" with the value behind it, or "get KEY". The answer to a get is a line
// with the number of bytes, and the value: two pieces, of which the second one is the buffer in which the
// value has lain since it was set. To another connection than that over which it was set it is copied.
#include "both_ends.hpp"

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

std::string read_line(int fd) {
    std::string line;
    char c;
    while (recv(fd, &c, 1, 0) == 1 && c != '\n')
        line += c;
    return line;
}

std::map<std::string, socksdirect::Buffer> values;

void serve(int fd) {
    socksdirect::Buffers buffers(fd);
    for (std::string line; !(line = read_line(fd)).empty();) {
        const size_t space = line.rfind(' ');
        if (line.compare(0, 4, "set ") == 0) {
            const size_t size = std::stoul(line.substr(space + 1));
            socksdirect::Buffer buffer = buffers.get(size);
            if (recv(fd, buffer.data(), size, MSG_WAITALL) != static_cast<ssize_t>(size))
                return;
            values[line.substr(4, space - 4)] = std::move(buffer);
        } else {
            const socksdirect::Buffer &value = values[line.substr(4)];
            const std::string head = std::to_string(value ? value.size() : 0) + "\n";
            const sd_piece pieces[] = {{head.data(), head.size(), nullptr},
                                       value ? value.piece() : sd_piece{nullptr, 0, nullptr}};
            buffers.send(pieces, MSG_NOSIGNAL);
        }
    }
}

void serve_two(example::Listener &listener) {
    for (int i = 0; i < 2; ++i) {
        const int fd = listener.accept();
        serve(fd);
        close(fd);
    }
}

class Client {
  public:
    explicit Client(int fd) : fd_(fd), buffers_(fd) {}
    ~Client() { close(fd_); }
    void set(const std::string &key, const std::string &value) {
        const std::string line = "set " + key + " " + std::to_string(value.size()) + "\n" + value;
        if (send(fd_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
            example::fail("send");
    }
    socksdirect::View get(const std::string &key) {
        const std::string line = "get " + key + "\n";
        if (send(fd_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
            example::fail("send");
        const size_t size = std::stoul(read_line(fd_));
        return size == 0 ? socksdirect::View() : buffers_.receive(size, MSG_WAITALL);
    }
    const socksdirect::Buffers &buffers() const { return buffers_; }

  private:
    int fd_;
    socksdirect::Buffers buffers_;
};

void use(example::Listener &listener) {
    std::mt19937 random(1);
    std::map<std::string, std::string> known;
    unsigned wrong = 0, gets = 0;
    for (int connection = 0; connection < 2; ++connection) {
        Client client(listener.connect());
        for (int i = 0; connection == 0 && i < 50; ++i) {
            const std::string key = "key " + std::to_string(i);
            std::string &value = known[key];
            value.assign(4096 + random() % 100'000, static_cast<char>('a' + i % 26));
            client.set(key, value);
        }
        for (; gets < 1000u * (connection + 1); ++gets) {
            const std::string key = "key " + std::to_string(random() % 50);
            const socksdirect::View view = client.get(key);
            const std::string &value = known[key];
            wrong += view.size() != value.size() || std::memcmp(view.data(), value.data(), value.size()) != 0;
        }
        example::show_counts(client.buffers());
    }
    std::printf("%u gets, %u wrong\n", gets, wrong);
    if (wrong != 0)
        std::exit(1);
}

} // namespace

int main() { return example::run(serve_two, use); }
