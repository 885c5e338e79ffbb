// SPDX-License-Identifier: Apache-2.0
#include "descriptor.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace holdfast::agent {

void Fd::reset(int number) {
    if (number_ >= 0) {
        ::close(number_);
    }
    number_ = number;
}

std::vector<std::string> names_in(int folder, std::size_t count_max) {
    std::vector<std::string> names;
    // A descriptor of its own: the stream takes it over and moves its position.
    Fd copy(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    DIR* const stream = copy.is_open() ? ::fdopendir(copy.get()) : nullptr;
    if (stream == nullptr) {
        return names;
    }
    copy.release();
    while (names.size() < count_max) {
        // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
        const dirent* const entry = ::readdir(stream);
        if (entry == nullptr) {
            break;
        }
        std::string name = entry->d_name;
        if (name != "." && name != "..") {
            names.push_back(std::move(name));
        }
    }
    ::closedir(stream);
    return names;
}

}  // namespace holdfast::agent
