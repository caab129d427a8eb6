// Which bridges of the host a network namespace is attached to.
#pragma once
#include <optional>
#include <set>

namespace sd::monitor {

/// The number by which this process's network namespace knows another one; nothing: it does not know it, so
/// no interface leads there. `ns`: a descriptor of that namespace.
std::optional<int> namespace_number(int ns);

/// The bridges, by interface index, that have an interface whose other end is in that namespace. As this side
/// says: what is set up inside the other namespace cannot add to it.
std::set<unsigned> bridges_to(int number);

} // namespace sd::monitor
