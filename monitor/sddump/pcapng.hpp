// Files in the pcapng format, which Wireshark reads: a section, one interface, packets, what was dropped.
// Debian has no small library that writes it: libpcap only reads it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sd::dump {

/// In the terms of the format.
enum class Way : uint32_t { inbound = 1, outbound = 2 };

class Pcapng {
  public:
    /// Begins a section with an interface on which whole IP packets are seen. `snap`: as a packet is cut.
    Pcapng(std::string_view program, std::string_view interface, std::string_view description, uint32_t snap);

    /// A packet of which `bytes` were kept and that was `length` long. `comment`: empty for none.
    void packet(uint64_t ns, Way way, std::string_view bytes, size_t length, std::string_view comment);
    /// Counts, at the end of the section.
    void statistics(uint64_t start_ns, uint64_t end_ns, uint64_t received, uint64_t dropped);

    /// What has been made since this was called last.
    std::string take();
    size_t size() const { return out_.size(); }

  private:
    size_t begin(uint32_t type);
    void end(size_t start);
    void word(uint32_t value);
    void time(uint64_t ns);
    void padded(std::string_view bytes);
    void option(uint16_t code, std::string_view value);
    void option(uint16_t code, uint64_t value);
    void option_time(uint16_t code, uint64_t ns);

    std::string out_;
};

} // namespace sd::dump
