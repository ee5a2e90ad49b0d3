/* Adds the numbers from 1 to the argument. Goes on where an earlier attempt has saved its state.
 *
 * cc -o sum sum.c -ltcsio; also a program in C++. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tcsio.h"

/* Step and sum. */
static long state[2];
static long length = 2;
static int keep = 0;

static int load(void)
{
    int file = tcs_open_read_("state");
    return file < 0 || tcs_read8_(&file, state, &length) != 0 || tcs_close_(&file, &keep) != 0;
}

static int save(void)
{
    int file = tcs_open_write_("state");
    return file < 0 || tcs_write8_(&file, state, &length) != 0 || tcs_close_(&file, &keep) != 0;
}

int main(int count, char **arguments)
{
    long last = count > 1 ? atol(arguments[1]) : 100;
    if (tcs_init_(0) != 0 || (tcs_jobrestarted_() != 0 && load() != 0))
        return 1;
    while (state[0] < last) {
        state[0]++;
        state[1] += state[0];
        usleep(20000); /* for the work of a step */
        if (state[0] % 10 == 0 || pmc_checkpoint_due() > 0)
            save(); /* if it fails, the last one is still there */
    }
    printf("The sum is %ld\n", state[1]);
    return tcs_finalize_();
}
