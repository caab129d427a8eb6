"""CPython's own tests of sockets, selectors, servers and, in a full run, of everything that uses the network or processes."""

import os
import re
import xml.etree.ElementTree

TITLE = "CPython"
PACKAGES = ("python3.11", "libpython3.11-testsuite")
SUITE = True
QUICK = True
WORKLOAD = "its own tests: sockets, selectors, servers, asyncio, ssl, http, mail, logging, os, subprocess, signals, multiprocessing"

SHORT = "test_select test_selectors test_poll test_epoll test_socketserver test_asyncore test_asynchat test_telnetlib test_timeout"
MORE = """test_socket test_asyncio test_ssl test_httplib test_httpservers test_urllib2_localnet test_smtplib test_smtpd test_ftplib
    test_imaplib test_poplib test_nntplib test_xmlrpc test_logging test_os test_posix test_subprocess test_signal test_eintr
    test_fork1 test_fcntl test_ioctl test_pty test_multiprocessing_fork test_multiprocessing_forkserver
    test_multiprocessing_spawn test_multiprocessing_main_handling test_concurrent_futures test_wsgiref test_docxmlrpc
    test_robotparser test_urllib"""


def run(r):
    modules = (SHORT if r.quick else f"{SHORT} {MORE}").split()
    report = r.path("report.xml")
    # Inside the namespace "network" only reaches loopback. Wall-clock limits of single tests are the suite's
    # own.
    command = ["/usr/bin/python3.11", "-m", "test", "-j2", "--timeout", "240", "-u", "all,network,-urlfetch,-largefile,-gui,-audio,-cpu",
               "-i", "*VSOCK*", "-i", "*Vsock*", "--junit-xml", report, *modules]
    process = r.start(command, cwd=r.directory)
    r.wait(process, 150 if r.quick else 1500)
    with open(process.log, encoding="utf-8", errors="replace") as f:
        log = f.read()
    if not os.path.exists(report):
        r.check("the suite reaches its end", False, log)
        return
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            r.result(case.get("name"), "failed", (case.findtext("failure") or case.findtext("error") or "")[-600:])
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            r.result(case.get("name"), "skipped")
        else:
            r.result(case.get("name"), "passed")
    for name, what in re.findall(r"^(?:[0-9:]+ load.*?)?(?:\[[^]]*\] )?(test_\w+) (crashed|timed out|failed \((?:worker|env)[^)]*\))",
                                 log, re.M):
        r.check(f"{name} as a whole", False, what)
