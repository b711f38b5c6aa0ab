# <pthread.h>, as far as we use it. C declarations alone.
from posix.time cimport timespec

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_create(pthread_t *thread, void *attributes, void *(*start)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    int pthread_mutex_clocklock(pthread_mutex_t *mutex, int clock, const timespec *until)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_condattr_init(pthread_condattr_t *attributes)
    int pthread_condattr_setclock(pthread_condattr_t *attributes, int clock)
    int pthread_cond_init(pthread_cond_t *condition, pthread_condattr_t *attributes)
    int pthread_cond_destroy(pthread_cond_t *condition)
    int pthread_cond_signal(pthread_cond_t *condition)
    int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const timespec *until)
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)

cdef extern from "signal.h" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t *signals)
    int pthread_sigmask(int how, const sigset_t *signals, sigset_t *old)
    int SIG_SETMASK
