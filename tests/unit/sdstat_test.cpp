// sdstat: the language of filters, how things are written, and the screen that lives. tests/e2e/sdstat_shown
// runs the program itself.
#include "monitor/sdstat/export.hpp"
#include "monitor/sdstat/filter.hpp"
#include "monitor/sdstat/text.hpp"
#include "monitor/sdstat/view.hpp"
#include "monitor/sdstat/watch.hpp"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <cstring>

using namespace sd;
using namespace sd::stat;
using Catch::Matchers::Contains;
using monitor::ConnectionRow;

namespace {

SlotAddress address(const char *ip, uint16_t port) {
    SlotAddress result{{}, port, AF_INET6};
    if (inet_pton(AF_INET6, ip, result.ip) != 1) {
        result.ip[10] = result.ip[11] = 0xff;
        result.family = AF_INET;
        REQUIRE(inet_pton(AF_INET, ip, result.ip + 12) == 1);
    }
    return result;
}

Socket socket(const char *local, uint16_t port, const char *peer, uint16_t peer_port) {
    Socket s;
    s.local = address(local, port);
    s.peer = address(peer, peer_port);
    s.pid = 42;
    s.comm = "redis-server";
    s.unit = "redis.service";
    return s;
}

bool matches(const std::string &filter, const Socket &s) { return Filter({filter}).matches(s); }

/// A connection between two processes that both know of it.
ConnectionRow connection(uint32_t slot, uint64_t to_server, uint64_t to_client) {
    ConnectionRow row{};
    row.link = 0x500000003ULL;
    row.slot = slot;
    row.since = 1000;
    row.end[0].address = address("127.0.0.1", static_cast<uint16_t>(40000 + slot));
    row.end[1].address = address("127.0.0.1", 6379);
    row.end[0].pid = 10;
    row.end[1].pid = 20;
    strcpy(row.end[0].comm, "client");
    strcpy(row.end[1].comm, "server");
    for (monitor::RowEnd &end : row.end) {
        end.is_known = 1;
    }
    row.end[0].sent_bytes = row.end[1].received_bytes = to_server;
    row.end[1].sent_bytes = row.end[0].received_bytes = to_client;
    return row;
}

Snapshot snapshot(double when, std::vector<ConnectionRow> rows) {
    Snapshot result;
    result.rows = std::move(rows);
    result.when = when;
    result.rest = {{"causes", nlohmann::json::array()}};
    result.processes[10] = {"client", "web.service", 0, 0, 0};
    result.processes[20] = {"server", "redis.service", 0, 0, 0};
    return result;
}

std::string joined(const Lines &lines) {
    std::string text;
    for (const std::string &line : lines) {
        text += line + "\n";
    }
    return text;
}

} // namespace

TEST_CASE("a filter chooses by address and port as ss does") {
    const Socket s = socket("127.0.0.1", 40000, "10.1.2.3", 80);
    for (const char *yes : {"dst 10.1.2.3:80", "dst 10.1.2.3", "dst = 10.0.0.0/8", "dst 10.1.2.3:*", "dst *:80",
                            "src 127.0.0.1", "dport = :80", "dport 80", "dport = :http", "sport > :1024",
                            "sport >= 40000", "sport != :1", "dport lt 81", "src != 10.1.2.3", "dst 0.0.0.0/0"}) {
        INFO(yes);
        CHECK(matches(yes, s));
    }
    for (const char *no : {"dst 10.1.2.3:81", "dst 11.0.0.0/8", "src 10.1.2.3", "dport != :80",
                           "sport < :1024", "dst != 10.1.2.3", "dst ::1", "dst 10.1.2.0/31"}) {
        INFO(no);
        CHECK_FALSE(matches(no, s));
    }
    const Socket six = socket("::1", 1, "fe80::7", 443);
    CHECK(matches("dst [fe80::7]:443", six));
    CHECK(matches("dst [fe80::]/16", six));
    CHECK(matches("dst fe80::7", six));
    CHECK_FALSE(matches("dst [fe80::7]:442", six));
}

TEST_CASE("conditions are joined: not before and, and before or, brackets before all") {
    const Socket s = socket("127.0.0.1", 6379, "127.0.0.1", 40000);
    const std::string yes = "sport = :6379", no = "sport = :1";
    for (const std::string &text :
         {yes + " or " + no + " and " + no, "(" + no + " or " + yes + ") and " + yes, "not " + no, "! " + no,
          "!(" + no + ")", yes + " " + yes, yes + " && " + yes, no + " | " + yes, no + "||" + yes,
          "not " + no + " and " + yes, std::string("(sport=:6379)")}) {
        INFO(text);
        CHECK(matches(text, s));
    }
    for (const std::string &text : {"(" + yes + " or " + no + ") and " + no, "not " + yes, yes + " " + no,
                                    "not (" + no + " or " + yes + ")", "not " + yes + " or " + no}) {
        INFO(text);
        CHECK_FALSE(matches(text, s));
    }
}

TEST_CASE("a filter chooses by state, program, unit, process and path") {
    Socket s = socket("127.0.0.1", 6379, "127.0.0.1", 40000);
    CHECK(matches("state established", s));
    CHECK(matches("state established sport = :6379", s));
    CHECK(matches("state connected", s));
    CHECK_FALSE(matches("exclude established", s));
    CHECK_FALSE(matches("state close-wait", s));
    CHECK(matches("state close-wait state established", s));
    s.state = State::close_wait;
    CHECK(matches("state close-wait", s));
    CHECK_FALSE(matches("state established", s));
    s.state = State::listening;
    CHECK_FALSE(matches("sport = :6379", s)); // without a state: what is connected
    CHECK(matches("state all sport = :6379", s));
    s.state = State::established;
    CHECK(matches("program redis-*", s));
    CHECK_FALSE(matches("program != redis-server", s));
    CHECK(matches("unit = redis.service", s));
    CHECK(matches("pid 42", s));
    CHECK_FALSE(matches("pid = 43", s));
    CHECK(matches("path shm", s));
    CHECK_FALSE(matches("path = kernel", s));
}

TEST_CASE("a filter that cannot be understood is refused with the word that is wrong") {
    const std::vector<std::pair<const char *, const char *>> cases = {
        {"frob", "\"frob\" is not understood"},
        {"state frob", "\"frob\" is no state"},
        {"sport = :frob-it", "\"frob-it\" is no port"},
        {"sport = :65536", "\"65536\" is no port"},
        {"dst 1.2.3", "\"1.2.3\" is no address"},
        {"dst 1.2.3.4/33", "prefix"},
        {"dst [::1", "\"[::1\" is no address"},
        {"sport =", "ends where a port should be"},
        {"( sport = :1", "a bracket is not closed"},
        {"sport = :1 )", "\")\" is too much"},
        {"pid x", "\"x\" is no process number"},
        {"path rdmx", "\"rdmx\" is no path"},
        {"dst < 1.2.3.4", "can only be equal or not"},
        {"not", "ends where a condition should be"},
        {"sport = :1 or", "ends where a condition should be"},
    };
    for (const auto &[text, what] : cases) {
        INFO(text);
        try {
            Filter filter({text});
            FAIL_CHECK("was taken");
        } catch (const Failure &failure) {
            CHECK(failure.status == Exit::usage);
            CHECK_THAT(failure.what(), Contains(what));
        }
    }
    CHECK_THROWS_AS(Filter({std::string(10000, '(')}), Failure);
    CHECK(Filter({}).is_empty());
}

TEST_CASE("states are what the kernel would say") {
    ConnectionRow row = connection(1, 0, 0);
    const Snapshot s = snapshot(1001, {});
    const auto states = [&](uint32_t client, uint32_t server) {
        row.end[0].flags = client;
        row.end[1].flags = server;
        return std::string(table_name(socket_of(s, row, 0).state)) + " " + table_name(socket_of(s, row, 1).state);
    };
    CHECK(states(0, 0) == "ESTAB ESTAB");
    CHECK(states(kFlagWriteShut, 0) == "FIN-WAIT-2 CLOSE-WAIT");
    CHECK(states(0, kFlagClosed) == "CLOSE-WAIT FIN-WAIT-2");
    CHECK(states(kFlagReset, 0) == "CLOSED CLOSED");
    CHECK(states(kFlagWriteShut, kFlagWriteShut) == "LAST-ACK LAST-ACK");
}

TEST_CASE("what one end has sent and the other has not taken is in the queues of both") {
    ConnectionRow row = connection(1, 100, 50);
    row.end[1].received_bytes = 60;
    const Snapshot s = snapshot(1001, {row});
    const Socket client = socket_of(s, s.rows[0], 0), server = socket_of(s, s.rows[0], 1);
    CHECK(client.send_queue == 40);
    CHECK(server.receive_queue == 40);
    CHECK(client.receive_queue == 0);
    CHECK(server.send_queue == 0);
    row.end[1].is_known = 0;
    CHECK(monitor::queued(row, 0) == -1);
    row.end[1].is_known = 1;
    row.end[1].received_bytes = 101; // read while both went on
    CHECK(monitor::queued(row, 0) == 0);
}

TEST_CASE("amounts, ages and names are short and printable") {
    CHECK(amount(0) == "0");
    CHECK(amount(9999) == "9999");
    CHECK(amount(12345) == "12K");
    CHECK(amount(5e12) == "5000G");
    CHECK(age(-1) == "0s");
    CHECK(age(59.9) == "59s");
    CHECK(age(61) == "1m01s");
    CHECK(age(7500) == "2h05m");
    CHECK(age(90061) == "1d01h");
    CHECK(printable("a\033[2Jb\xff\n") == "a?[2Jb??");
}

TEST_CASE("a table leaves out what does not fit, from the right") {
    const std::vector<Row> rows{{"A", "LONGER", "C"}, {"1", "2", "33333"}};
    CHECK(table(rows, Fit::all, 5) == Lines{"A  LONGER  C", "1  2       33333"});
    CHECK(table(rows, Fit::columns, 0) == Lines{"A  LONGER  C", "1  2       33333"});
    CHECK(table(rows, Fit::columns, 12) == Lines{"A  LONGER", "1  2"});
    CHECK(table(rows, Fit::columns, 5) == Lines{"A", "1"});
    CHECK(table({{"LONG"}}, Fit::columns, 2) == Lines{"LO"});
}

TEST_CASE("values with commas and quotes are quoted") {
    CHECK(csv_field("plain") == "plain");
    CHECK(csv_field("a,\"b\"") == "\"a,\"\"b\"\"\"");
    const std::string text = csv_text(snapshot(1001, {connection(7, 1, 2)}), Filter({}));
    const size_t line = text.find('\n');
    CHECK(std::count(text.begin(), text.begin() + static_cast<long>(line), ',') ==
          std::count(text.begin() + static_cast<long>(line), text.end(), ','));
    CHECK_THAT(text, Contains("\n3.7,established,1000.000,127.0.0.1:40007,10,client,web.service,,"));
}

TEST_CASE("the JSON text of a connection is JSON, whatever the program is called") {
    ConnectionRow row = connection(1, 3, 4);
    memcpy(row.end[0].comm, "a\"\\\xff\n}", 7);
    row.end[0].pids = 2;
    const Snapshot s = [&] {
        Snapshot made = snapshot(1001, {row});
        made.pids = {10, 11};
        return made;
    }();
    const auto parsed = nlohmann::json::parse(json_text(s, Filter({}), {}));
    const auto &c = parsed["connections"][0];
    CHECK(c["id"] == "3.1");
    CHECK(c["client"]["pids"] == nlohmann::json{10, 11});
    CHECK(c["to_server"]["bytes"] == 3);
    CHECK(c["to_client"]["path"] == "shm");
    CHECK(c["state"] == "established");
    CHECK(nlohmann::json::parse(json_text(s, Filter({"sport = :1"}), {}))["connections"].empty());
}

TEST_CASE("what went as pages is told with the reasons why the rest was copied") {
    ConnectionRow row = connection(5, 1000, 300);
    const std::vector<uint32_t> none;
    CHECK(joined(one_view(snapshot(1001, {row}), "3.5")).find("pages") == std::string::npos);
    row.handed[0].channels = 1;
    row.handed[0].given = 600;
    row.handed[0].mapped = 500;
    row.handed[0].read = 100;
    row.handed[0].copied[static_cast<unsigned>(Copied::foreign)] = 250;
    std::string text;
    monitor::append_json(text, row, none.data());
    const auto json = nlohmann::json::parse(text);
    CHECK(json["to_client"]["handed"].is_null());
    const auto &handed = json["to_server"]["handed"];
    CHECK(handed["given"] == 600);
    CHECK(handed["mapped"] == 500);
    CHECK(handed["read"] == 100);
    CHECK(handed["copied"]["not_ours"] == 250);
    CHECK(handed["copied"]["too_small"] == 150);
    CHECK(handed["copied"]["unaligned"] == 0);
    const std::string view = joined(one_view(snapshot(1001, {row}), "3.5"));
    CHECK_THAT(view, Contains("600 bytes: 500 mapped by the receiver, 100 copied by it") &&
                         Contains("copied: 250 bytes, memory that is not the device's") &&
                         Contains("copied: 150 bytes, too small"));
    CHECK(view.find("no whole page") == std::string::npos);
    const std::string csv = csv_text(snapshot(1001, {row}), Filter({}));
    CHECK_THAT(csv, Contains("to_server_given,to_client_given,to_server_mapped,to_client_mapped\n") &&
                        Contains(",600,,500,\n"));
    row.end[0].sent_bytes = 10; // read at another moment than the rest
    CHECK(monitor::too_small(row, 0) == 0);
}

TEST_CASE("bytes that are no snapshot are refused") {
    CHECK_THROWS_AS(read_snapshot(""), Failure);
    CHECK_THROWS_AS(read_snapshot(std::string(200, 'x')), Failure);
    monitor::SnapshotHeader header{
        monitor::kSnapshotMagic, monitor::kSnapshotVersion, sizeof(ConnectionRow), UINT64_MAX, 0, 2};
    std::string bytes(reinterpret_cast<const char *>(&header), sizeof header);
    CHECK_THROWS_AS(read_snapshot(bytes + "{}"), Failure);
    header.rows = 0;
    bytes.assign(reinterpret_cast<const char *>(&header), sizeof header);
    CHECK(read_snapshot(bytes + "{}").rows.empty());
    CHECK_THROWS_AS(read_snapshot(bytes + "[]"), Failure);
    // Rows of a later version are longer, and name pids that are not there.
    header.rows = 1;
    header.row_bytes += 8;
    bytes.assign(reinterpret_cast<const char *>(&header), sizeof header);
    ConnectionRow row = connection(5, 1, 1);
    bytes.append(reinterpret_cast<const char *>(&row), sizeof row).append(8, 'x');
    CHECK(read_snapshot(bytes + "{}").rows[0].slot == 5);
    row.end[0].pids = 1;
    memcpy(bytes.data() + sizeof header, &row, sizeof row);
    CHECK_THROWS_AS(read_snapshot(bytes + "{}"), Failure);
}

TEST_CASE("a connection is found by its id and by the name of an end") {
    const Snapshot s = snapshot(1001, {connection(1, 1, 1), connection(2, 1, 1)});
    CHECK(is_connection_name("3.1"));
    CHECK_FALSE(is_connection_name("state"));
    CHECK_THAT(joined(one_view(s, "3.1")), Contains("connection 3.1, established, for 1s"));
    CHECK_THAT(joined(one_view(s, "127.0.0.1:40002")), Contains("connection 3.2"));
    CHECK_THROWS_WITH(one_view(s, "9.9"), Contains("no such connection"));
    CHECK_THROWS_WITH(one_view(s, "127.0.0.1:6379"), Contains("2 connections have that name"));
}

TEST_CASE("the screen shows rates between two looks, sorted by a key") {
    Watch watch(Filter({}));
    watch.take(snapshot(1010, {connection(1, 1000, 0), connection(2, 0, 0)}));
    watch.take(snapshot(1012, {connection(1, 1200, 0), connection(2, 8000, 0), connection(3, 0, 0)}));
    const std::string text = joined(watch.screen(120, 30, ""));
    CHECK_THAT(text, Contains("3 connections, 4100B/s"));
    CHECK(text.find("4000") < text.find("\n100 "));
    CHECK_THAT(text, Contains("client[10] > server[20]"));
    CHECK(watch.key('a'));
    CHECK(watch.key('2'));
    const std::string processes = joined(watch.screen(120, 30, "what is wrong"));
    CHECK_THAT(processes, Contains("processes by age"));
    CHECK_THAT(processes, Contains("what is wrong"));
    CHECK_THAT(processes, Contains("web.service"));
    CHECK(watch.key('3'));
    CHECK_THAT(joined(watch.screen(120, 30, "")), Contains("redis.service"));
    CHECK(watch.key(' '));
    CHECK(watch.is_paused());
    CHECK(watch.key('h'));
    CHECK_THAT(joined(watch.screen(120, 30, "")), Contains("sort by rate"));
    CHECK(watch.key('\033'));
    CHECK_FALSE(watch.key('q'));
}

TEST_CASE("the screen shows causes over time, and stays within the terminal") {
    Watch watch(Filter({}));
    for (int i = 0; i < 100; ++i) {
        std::vector<ConnectionRow> rows;
        for (uint32_t slot = 0; slot < 50; ++slot) {
            rows.push_back(connection(slot, 1, 1));
        }
        Snapshot s = snapshot(2000 + i, std::move(rows));
        s.rest["causes"] = {{{"number", 14}, {"name", "plain_client"}, {"count", 5 + i}}};
        watch.take(std::move(s));
    }
    const Lines wide = watch.screen(120, 20, "");
    CHECK(wide.size() <= 20);
    CHECK_THAT(joined(wide), Contains("14 plain_client     1    60     99      104"));
    for (const auto &[width, height] : {std::pair<size_t, size_t>(40, 12), {10, 3}, {1, 1}}) {
        const Lines lines = watch.screen(width, height, "");
        CHECK(lines.size() <= height);
        for (const std::string &line : lines) {
            CHECK(line.size() <= width);
        }
    }
}
