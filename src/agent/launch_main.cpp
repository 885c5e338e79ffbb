// SPDX-License-Identifier: Apache-2.0
/// hold-launch: started by the agent, one per task; see launcher.hpp. Not for people.
#include <cstdio>
#include <string_view>

#include <unistd.h>

#include "launcher.hpp"

int main(int count, char** arguments) {
    const bool secret = count == 3 && std::string_view(arguments[2]) == "secret";
    if (count != 2 && !secret) {
        std::fputs("usage: hold-launch FOLDER [secret]\nStarted by `hold agent`, one per task.\n",
                   stderr);
        return 2;
    }
    // _exit: nothing of ours waits to be flushed, and static destructors have no work.
    ::_exit(holdfast::agent::launch(arguments[1], secret));
}
