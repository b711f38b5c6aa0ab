// Two guests add to one word of the memory device that they share. Prints what is in it once both have.
// cc -O2 -o adds adds.c; adds DEVICE A|B ADDITIONS
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MAPPED = 2 << 20, LINE = 8 };  // bytes; words in a cache line

static void meet(volatile uint64_t *words, int me, uint64_t turn) {
    words[me * LINE] = turn;
    while (words[!me * LINE] < turn)
        sched_yield();
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    int device = open(arguments[1], O_RDWR), me = arguments[2][0] == 'B';
    uint64_t *words = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0), *sum = words + 2 * LINE;
    if (words == MAP_FAILED)
        return perror(arguments[1]), 1;
    meet(words, me, 1);
    for (long additions = atol(arguments[3]); additions > 0; additions--)
        __atomic_fetch_add(sum, 1, __ATOMIC_SEQ_CST);
    meet(words, me, 2);
    printf("%lu\n", *(volatile uint64_t *)sum);
    meet(words, me, 3);
}
