/* A program that cannot be preloaded: statically linked. It does with a descriptor it inherits, or is
 * passed, what its first argument says. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *text) {
    char line[256];
    int n = snprintf(line, sizeof line, "%s\n", text);
    if (write(1, line, (size_t)n) < 0)
        _exit(98);
}

static int send_all(int fd, const char *data, size_t size) {
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n <= 0)
            return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

static void echo(int in, int out) {
    static char buffer[65536];
    ssize_t n;
    while ((n = read(in, buffer, sizeof buffer)) > 0)
        if (send_all(out, buffer, (size_t)n) < 0)
            exit(3);
}

static void names(int fd) {
    struct sockaddr_in own, peer;
    socklen_t length = sizeof own;
    char text[64], line[200];
    if (getsockname(fd, (struct sockaddr *)&own, &length) != 0)
        exit(4);
    length = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0)
        exit(5);
    inet_ntop(AF_INET, &own.sin_addr, text, sizeof text);
    snprintf(line, sizeof line, "%s from ", text);
    inet_ntop(AF_INET, &peer.sin_addr, text, sizeof text);
    strcat(line, text);
    if (send_all(fd, line, strlen(line)) < 0)
        exit(3);
}

/* Reads a request, once, and answers it. */
static void answer(int in, int out) {
    char text[300] = "answer to ";
    ssize_t n = read(in, text + 10, sizeof text - 10);
    if (n <= 0)
        exit(6);
    if (send_all(out, text, (size_t)n + 10) < 0)
        exit(3);
}

static int take(int channel) {
    char byte;
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message;
    memset(&message, 0, sizeof message);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    if (recvmsg(channel, &message, 0) <= 0 || CMSG_FIRSTHDR(&message) == NULL)
        return -1;
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    const char *what = argv[1];
    int fd = atoi(argv[2]);
    if (strcmp(what, "echo") == 0) {
        echo(fd, fd);
    } else if (strcmp(what, "standard") == 0) {
        echo(0, 1);
    } else if (strcmp(what, "names") == 0) {
        names(fd);
    } else if (strcmp(what, "writes") == 0) {
        if (send_all(fd, "from a stranger", 15) < 0)
            return 3;
    } else if (strcmp(what, "answer") == 0) {
        answer(fd, fd);
    } else if (strcmp(what, "answers standard") == 0) {
        answer(0, 1);
    } else if (strcmp(what, "takes four") == 0) {
        char bytes[4];
        if (recv(fd, bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes)
            return 7;
    } else if (strcmp(what, "shuts") == 0) {
        if (shutdown(fd, SHUT_WR) != 0)
            return 8;
    } else if (strcmp(what, "has a child") == 0) { /* another program like this one */
        pid_t child = fork();
        int status = 0;
        if (child == 0) {
            execl("/proc/self/exe", argv[0], "answer", argv[2], (char *)NULL);
            _exit(9);
        }
        if (send_all(fd, "first ", 6) < 0 || waitpid(child, &status, 0) < 0)
            return 10;
        return status == 0 && send_all(fd, " last", 5) == 0 ? 0 : 11;
    } else if (strcmp(what, "stays") == 0) { /* until it is killed */
        for (;;)
            pause();
    } else if (strcmp(what, "waits") == 0) { /* for the end, and says how it came */
        char byte;
        ssize_t n = read(fd, &byte, 1);
        say(n == 0 ? "the end" : n < 0 && errno == ECONNRESET ? "a reset" : "something else");
    } else if (strcmp(what, "accept") == 0) {
        int connection = accept(fd, NULL, NULL);
        echo(connection, connection);
    } else if (strcmp(what, "pool") == 0) { /* one of several that accept on a listener it is passed */
        int listener = take(fd), failed = 0;
        char byte = 0;
        while (byte != 'q') {
            int connection = accept(listener, NULL, NULL);
            if (connection < 0) {
                ++failed;
                continue;
            }
            if (read(connection, &byte, 1) == 1)
                send_all(connection, &byte, 1);
            close(connection);
        }
        return failed == 0 ? 0 : 12; /* not said: who of the pool ends first is open */
    } else if (strcmp(what, "worker") == 0) {
        int taken;
        while ((taken = take(fd)) >= 0) {
            echo(taken, taken);
            close(taken);
        }
    } else {
        return 2;
    }
    return 0;
}
