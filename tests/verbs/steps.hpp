// The steps of a script of verbs, as one side of it carries them out. README.md has the language.
#pragma once
#include "tests/verbs/device.hpp"
#include "tests/verbs/rendezvous.hpp"
#include <map>
#include <set>
#include <string>
#include <vector>

namespace sd::verbs {

using Words = std::vector<std::string>;

class Side {
  public:
    Side(unsigned side, Rendezvous &other);
    ~Side();
    Side(const Side &) = delete;
    Side &operator=(const Side &) = delete;
    /// `words` begins with the step's name. `for_us`: this side carries it out; else only what concerns both.
    /// What it found is printed, a line each, after "SIDE NUMBER: ".
    void step(uint32_t number, const Words &words, bool for_us);

  private:
    struct Memory {
        std::vector<uint8_t> *bytes;
        ibv_mr *registered;
        uint64_t peer_address;
        uint32_t peer_key;
    };
    struct Place { ///< MEMORY:OFFSET[:LENGTH]
        Memory *memory;
        uint64_t offset, length;
    };

    void say(const char *format, ...) __attribute__((format(printf, 2, 3)));
    [[noreturn]] void wrong(const char *what);
    Place place(const std::string &text);
    ibv_qp *pair(const std::string &name);

    void make_pair(const Words &);
    void make_memory(const Words &);
    void fill(const Words &);
    void show(const Words &);
    void receive(const Words &);
    void write(const Words &);
    void poll(const Words &);
    void event(const Words &, bool wanted);
    void async();

    unsigned side_;
    Rendezvous &other_;
    Device device_;
    ibv_comp_channel *channel_ = nullptr;
    ibv_cq *queue_ = nullptr;
    std::map<std::string, ibv_qp *> pairs_;
    std::map<uint32_t, std::string> names_;
    std::set<uint64_t> receives_; ///< their ids
    std::map<std::string, Memory> memories_;
    /// Writes that are posted together with the next one.
    struct Waiting {
        ibv_send_wr request{};
        std::vector<ibv_sge> pieces;
    };
    std::vector<Waiting> waiting_;
    uint32_t number_ = 0;
};

} // namespace sd::verbs
