// Libraries that a program opens, whose names are bound to the C library in preference to all else
// (RTLD_DEEPBIND).
#include "tests/programs/cases.hpp"

#include <dlfcn.h>

using namespace sdtest;

namespace {

std::string beside_us(const char *name) {
    char path[4096] = {};
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    std::string own = path;
    return own.substr(0, own.rfind('/') + 1) + name;
}

class Plugin {
  public:
    Plugin(const char *name, int mode) {
        handle_ = dlopen(beside_us(name).c_str(), mode | RTLD_DEEPBIND);
        if (!handle_)
            say("set-up failed: %s", dlerror());
    }

    template <class R, class... A> R call(const char *name, A... arguments) const {
        const auto function = reinterpret_cast<R (*)(A...)>(dlsym(handle_, name));
        return function(arguments...);
    }

  private:
    void *handle_;
};

void converse(const Plugin &plugin) {
    const Pair pair = make_pair();
    send_all(pair.client, "to and fro");
    SHOW(plugin.call<long>("plugin_echo", pair.server));
    say("%s", receive(pair.client, 10).c_str());
    SHOW(plugin.call<long>("plugin_send_through_tables", pair.server));
    say("%s", receive_to_end(pair.client).c_str());
    SHOW(plugin.call<int>("plugin_close", pair.server));
    send_all(pair.client, "?");
    SHOW_BOOL((poll_now(pair.client, POLLIN, kPatience) & POLLERR) != 0);
    close(pair.client);

    const Address address = local_address(pair.listener);
    const int client = MUST(plugin.call<int>("plugin_connect", address.raw(), address.length));
    const int server = MUST(accept(pair.listener, nullptr, nullptr));
    send_all(client, "the plugin's");
    say("%s", receive(server, 12).c_str());
    SHOW(plugin.call<int>("plugin_close", client));
    say("rest %zu", receive_to_end(server).size());

    const int listener = MUST(plugin.call<int>("plugin_listen"));
    const int to_plugin = connect_to(listener);
    const int accepted = MUST(plugin.call<int>("plugin_accept", listener));
    send_all(to_plugin, "to the plugin");
    SHOW(plugin.call<long>("plugin_echo", accepted));
    say("%s", receive(to_plugin, 13).c_str());
}

} // namespace

BEHAVIOUR("a library with RTLD_DEEPBIND, bound when it calls", deep_and_lazy, all_accelerated) {
    converse(Plugin("plugin_lazy.so", RTLD_LAZY | RTLD_GLOBAL));
}
BEHAVIOUR("a library with RTLD_DEEPBIND, bound at once", deep_and_now, all_accelerated) {
    converse(Plugin("plugin_now.so", RTLD_NOW));
}
BEHAVIOUR("a library with RTLD_DEEPBIND, made to be bound at once", deep_and_sealed, all_accelerated) {
    converse(Plugin("plugin_now.so", RTLD_LAZY));
}
BEHAVIOUR("a library that another with RTLD_DEEPBIND needs", deep_as_a_dependency, all_accelerated) {
    converse(Plugin("plugin_user.so", RTLD_LAZY));
}

BEHAVIOUR("a library with RTLD_DEEPBIND and names of its own", deep_keeps_its_own_names, accelerated) {
    const Plugin plugin("plugin_lazy.so", RTLD_LAZY);
    SHOW(plugin.call<int>("plugin_own_function", make_pair().server));
    const Plugin again("plugin_lazy.so", RTLD_LAZY); // nothing new is loaded
    SHOW(again.call<int>("plugin_own_function", make_pair().server));
}

BEHAVIOUR("dlerror after RTLD_DEEPBIND", deep_leaves_no_error, any) {
    const Plugin plugin("plugin_lazy.so", RTLD_LAZY);
    SHOW_BOOL(dlerror() == nullptr);
    SHOW_BOOL(dlopen(beside_us("nothing.so").c_str(), RTLD_LAZY | RTLD_DEEPBIND) == nullptr);
    SHOW_BOOL(dlerror() != nullptr);
    SHOW_BOOL(dlopen(nullptr, RTLD_LAZY | RTLD_DEEPBIND) != nullptr);
}

BEHAVIOUR("a library in the caller's search path", found_where_the_caller_says, any) {
    SHOW_BOOL(dlopen("plugin_now.so", RTLD_LAZY) != nullptr);
    SHOW_BOOL(dlopen("plugin_lazy.so", RTLD_LAZY | RTLD_DEEPBIND) != nullptr);
}

int main(int argc, char **argv) { return run_behaviour(argc, argv); }
