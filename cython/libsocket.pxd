# Sockets, epoll, eventfd and poll, as far as we use them. C declarations alone.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.types cimport suseconds_t, time_t

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "sys/time.h" nogil:
    struct timeval:
        time_t tv_sec
        suseconds_t tv_usec

cdef extern from "sys/socket.h" nogil:
    ctypedef unsigned int socklen_t
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        unsigned short ss_family
    struct msghdr:
        void *msg_name
        socklen_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    ssize_t recv(int fd, void *buffer, size_t length, int flags)
    ssize_t send(int fd, const void *buffer, size_t length, int flags)
    int accept4(int fd, sockaddr *address, socklen_t *length, int flags)
    int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
    int shutdown(int fd, int how)
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL
    int SOCK_NONBLOCK, SOCK_CLOEXEC, SOL_SOCKET, SO_RCVTIMEO, SO_SNDTIMEO, SO_KEEPALIVE, SHUT_RDWR
    int AF_INET, AF_INET6

cdef extern from "netinet/tcp.h" nogil:
    int TCP_NODELAY, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT

cdef extern from "netinet/in.h" nogil:
    int IPPROTO_TCP

cdef extern from "netdb.h" nogil:
    int getnameinfo(const sockaddr *address, socklen_t length, char *host, socklen_t hostlen, char *service,
                    socklen_t servicelen, int flags)
    int NI_NUMERICHOST, NI_NUMERICSERV

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        void *ptr
        int fd
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)
    int EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLEXCLUSIVE

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int initial, int flags)
    int EFD_NONBLOCK, EFD_CLOEXEC

cdef extern from "poll.h" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    short POLLIN, POLLOUT, POLLRDHUP

cdef extern from "unistd.h" nogil:
    ssize_t read(int fd, void *buffer, size_t count)
    ssize_t write(int fd, const void *buffer, size_t count)
    int close_fd "close"(int fd)
