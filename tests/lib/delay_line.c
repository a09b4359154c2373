/* A line that is far: passes Ethernet frames between network interfaces, each frame a fixed time
 * after it came. It does not bound how many are under way, and orders none anew. Frames go as the
 * kernel has them, so that it need not cut what one host gives it in one piece.
 *
 * Usage: delay_line MICROSECONDS INTERFACE...     (says "ready"; ends with SIGTERM, or when its
 * standard input ends) */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Most interfaces, the longest frame, and bytes that the kernel keeps for each interface. */
enum { MOST = 16, LONGEST = 1 << 17, KEPT = 1 << 28 };

/* Frames that are under way, in the order in which they came. */
struct frame {
    struct frame *next;
    int64_t due_ns;
    int from;
    size_t length;
    unsigned char bytes[];
};

struct port {
    int socket;
    unsigned char station[ETH_ALEN]; /* Who is there: the sender of what came from there. */
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int open_port(const char *interface) {
    int s = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0), one = 1, kept = KEPT;
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    if (s < 0) fail("socket");
    if (setsockopt(s, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)) fail("PACKET_VNET_HDR");
    if (setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one))
        fail("PACKET_IGNORE_OUTGOING");
    if (setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &kept, sizeof kept)) fail("SO_RCVBUFFORCE");
    if (setsockopt(s, SOL_SOCKET, SO_SNDBUFFORCE, &kept, sizeof kept)) fail("SO_SNDBUFFORCE");
    at.sll_ifindex = (int)if_nametoindex(interface);
    if (!at.sll_ifindex || bind(s, (struct sockaddr *)&at, sizeof at)) fail(interface);
    return s;
}

/* A frame goes to the station that it names, or to all others. What the kernel cannot take is lost,
 * as on any line. */
static void pass(const struct frame *f, const struct port *ports, int count) {
    const unsigned char *to = f->bytes + sizeof(struct virtio_net_hdr);
    int only = -1;
    for (int i = 0; i < count; i++)
        if (!memcmp(ports[i].station, to, ETH_ALEN)) only = i;
    for (int i = 0; i < count; i++)
        if (i != f->from && (only < 0 || only == i))
            if (send(ports[i].socket, f->bytes, f->length, 0) < 0 && errno != EAGAIN &&
                errno != ENOBUFS && errno != ENETDOWN)
                perror("a frame is lost");
}

int main(int argc, char **argv) {
    struct port ports[MOST] = {0};
    struct pollfd polled[MOST + 1];
    struct frame *first = NULL, *last = NULL;
    static unsigned char buffer[LONGEST];
    int count = argc - 2;
    if (count < 2 || count > MOST) {
        fprintf(stderr, "usage: %s MICROSECONDS INTERFACE INTERFACE...\n", argv[0]);
        return 2;
    }
    const int64_t delay_ns = atoll(argv[1]) * 1000;
    for (int i = 0; i < count; i++) {
        ports[i].socket = open_port(argv[i + 2]);
        polled[i] = (struct pollfd){.fd = ports[i].socket, .events = POLLIN};
    }
    polled[count] = (struct pollfd){.fd = 0};
    puts("ready");
    fflush(stdout);
    while (!polled[count].revents) {
        int64_t now = now_ns();
        while (first && first->due_ns <= now) {
            struct frame *done = first;
            pass(done, ports, count);
            first = done->next;
            free(done);
        }
        const int64_t rest = first ? first->due_ns - now : 1000000000;
        const struct timespec wait = {rest / 1000000000, rest % 1000000000};
        if (ppoll(polled, (nfds_t)count + 1, &wait, NULL) < 0 && errno != EINTR) fail("ppoll");
        for (int i = 0; i < count; i++) {
            ssize_t got;
            while (polled[i].revents && (got = recv(ports[i].socket, buffer, LONGEST, 0)) > 0) {
                struct frame *f = malloc(sizeof *f + (size_t)got);
                if (!f) fail("malloc");
                *f = (struct frame){.due_ns = now_ns() + delay_ns, .from = i};
                f->length = (size_t)got;
                memcpy(f->bytes, buffer, f->length);
                memcpy(ports[i].station, f->bytes + sizeof(struct virtio_net_hdr) + ETH_ALEN,
                       ETH_ALEN);
                if (first)
                    last->next = f;
                else
                    first = f;
                last = f;
            }
        }
    }
    return 0;
}
