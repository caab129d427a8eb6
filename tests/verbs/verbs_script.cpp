// One side of a script of verbs: verbs_script SCRIPT SIDE PORT [ADDRESS]. README.md has the language.
#include "tests/verbs/steps.hpp"
#include <fstream>
#include <sstream>

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: verbs_script SCRIPT SIDE PORT [ADDRESS]\n");
        return 2;
    }
    const auto side = static_cast<unsigned>(atoi(argv[2]));
    std::ifstream script(argv[1]);
    if (!script) {
        perror(argv[1]);
        return 2;
    }
    sd::verbs::Rendezvous other(side, argc > 4 ? argv[4] : "127.0.0.1", static_cast<uint16_t>(atoi(argv[3])));
    sd::verbs::Side here(side, other);
    std::string line;
    for (uint32_t number = 1; std::getline(script, line); ++number) {
        std::istringstream text(line.substr(0, line.find('#')));
        std::string who, word;
        sd::verbs::Words words;
        text >> who;
        while (text >> word)
            words.push_back(word);
        if (words.empty())
            continue;
        here.step(number, words, who == "both" || who == std::to_string(side));
        other.meet(number);
    }
    return 0;
}
