// SPDX-License-Identifier: Apache-2.0
// `hold`: the command line of Holdfast. Links the API only; its neighbours in libexec do the rest.
#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "app.hpp"
#include "text.hpp"

namespace {

using holdfast::Errc;
using holdfast::Error;
using holdfast::Result;

Result<std::string> read_standard_input(std::size_t bytes_max) {
    std::string text;
    while (true) {
        char block[65536];
        const ssize_t got = ::read(STDIN_FILENO, block, sizeof block);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return holdfast::fail(Errc::failed, "read the standard input: {}",
                                  std::strerror(errno));
        }
        if (got == 0) {
            return text;
        }
        text.append(block, static_cast<std::size_t>(got));
        if (text.size() > bytes_max) {
            return holdfast::fail(Errc::too_large, "the standard input holds more than {} bytes",
                                  bytes_max);
        }
    }
}

Error replace_process(const std::string& path, const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {path};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) {
        pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    ::execv(path.c_str(), pointers.data());
    const int reason = errno;
    return holdfast::make_error(reason == ENOENT ? Errc::not_found : Errc::failed, "start {}: {}",
                                path, std::strerror(reason))
        .advise("install it, or set HOLDFAST_LIBEXEC to the folder that holds it");
}

}  // namespace

int main(int argc, char** argv) {
    holdfast::cli::FileStream out(STDOUT_FILENO);
    holdfast::cli::FileStream err(STDERR_FILENO);
    holdfast::cli::Surroundings surroundings{holdfast::real_env(), out, err, read_standard_input,
                                             replace_process};
    return holdfast::cli::run_hold({argv + 1, argv + argc}, surroundings);
}
