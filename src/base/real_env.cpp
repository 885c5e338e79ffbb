// SPDX-License-Identifier: Apache-2.0
/// The machine's clock, randomness and environment variables. The only place that asks for them.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <sys/random.h>
#include <unistd.h>

#include "real_parts.hpp"

namespace holdfast {

namespace {

class RealClock : public Clock {
  public:
    std::int64_t wall_us() override {
        return std::chrono::duration_cast<std::chrono::microseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
            .count();
    }

    std::int64_t steady_us() override {
        return std::chrono::duration_cast<std::chrono::microseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    void sleep_us(std::int64_t duration_us) override {
        std::this_thread::sleep_for(std::chrono::microseconds(duration_us));
    }
};

class RealRandom : public Random {
  public:
    std::uint64_t next() override {
        std::uint64_t value = 0;
        fill(std::as_writable_bytes(std::span(&value, 1)));
        return value;
    }

    void fill(std::span<std::byte> bytes) override {
        while (!bytes.empty()) {
            // Requests of up to 256 bytes are never cut short once the kernel's pool is ready.
            const ssize_t got =
                getrandom(bytes.data(), std::min<std::size_t>(bytes.size(), 256), 0);
            HOLD_CHECK(got > 0 || errno == EINTR, "getrandom works on every Linux we run on");
            if (got > 0) {
                bytes = bytes.subspan(static_cast<std::size_t>(got));
            }
        }
    }
};

}  // namespace

Descriptor::~Descriptor() {
    if (number_ >= 0) {
        ::close(number_);
    }
}

Error system_error(std::string_view action, const std::string& what, int error_number) {
    Errc code = Errc::failed;
    switch (error_number) {
        case ENOENT:
        case ENOTDIR:
            code = Errc::not_found;
            break;
        case EACCES:
        case EPERM:
        case EROFS:
            code = Errc::denied;
            break;
        case ENOSPC:
        case EDQUOT:
        case EFBIG:
            code = Errc::store_full;
            break;
        case EIO:
            code = Errc::store_io;
            break;
        case EEXIST:
        case ENOTEMPTY:
            code = Errc::conflict;
            break;
        case EMFILE:
        case ENFILE:
        case ENOMEM:
            code = Errc::unavailable;
            break;
        default:
            break;
    }
    char buffer[128];
    // The GNU form returns the text, which may or may not be the buffer.
    const char* text = strerror_r(error_number, buffer, sizeof(buffer));
    return make_error(code, "{} {}: {}", action, what, text);
}

Env& real_env() {
    static RealClock clock;
    static RealRandom random;
    static Env env{clock, random, real_files(), real_network()};
    return env;
}

std::optional<std::string> environment_variable(const std::string& name) {
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): see the header
    if (value == nullptr) {
        return std::nullopt;
    }
    return std::string(value);
}

}  // namespace holdfast
