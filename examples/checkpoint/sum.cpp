// Adds the numbers from 1 to the argument. Goes on where an earlier attempt has saved its state.
//
// c++ -o sum sum.cpp -ltcsio
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

#include "tcsio.h"

// A file with a state, which is closed in any case. What was not written as a whole does not count.
class File {
public:
    explicit File(int number) : number(number) {}
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    ~File()
    {
        int keep = 0;
        if (number > 0)
            tcs_close_(&number, &keep);
    }
    bool read(std::vector<long> &state)
    {
        long length = static_cast<long>(state.size());
        return number > 0 && tcs_read8_(&number, state.data(), &length) == 0;
    }
    bool write(std::vector<long> &state)
    {
        long length = static_cast<long>(state.size());
        return number > 0 && tcs_write8_(&number, state.data(), &length) == 0;
    }

private:
    int number;
};

int main(int count, char **arguments)
{
    const long last = count > 1 ? std::atol(arguments[1]) : 100;
    std::vector<long> state(2); // step and sum
    if (tcs_init_(nullptr) != 0)
        return 1;
    if (tcs_jobrestarted_() > 0 && !File(tcs_open_read_("state")).read(state))
        return 1;
    while (state[0] < last) {
        state[1] += ++state[0];
        std::this_thread::sleep_for(std::chrono::milliseconds(20)); // for the work of a step
        if (state[0] % 10 == 0 || pmc_checkpoint_due() > 0)
            File(tcs_open_write_("state")).write(state); // if it fails, the last one is still there
    }
    std::cout << "The sum is " << state[1] << std::endl;
    return tcs_finalize_();
}
