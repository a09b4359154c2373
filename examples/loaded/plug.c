/* The library that the example loaded_library loads: it has memory of its own, and some for each
 * thread, which begin anew each time it is loaded. */
#include <stdint.h>

uint64_t plug(uint64_t number);

static uint64_t calls;
static __thread uint64_t mine = 11;

uint64_t plug(uint64_t number) {
    calls++;
    mine += number & 3;
    return number * 2654435761u + calls + mine;
}
