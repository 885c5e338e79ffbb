// SPDX-License-Identifier: Apache-2.0
#include "output_sink.hpp"

#include <algorithm>
#include <cerrno>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "task_files.hpp"

namespace holdfast::agent {
namespace {

constexpr std::size_t kCarryBytes = 64 * 1024;

/// Bytes written; errno is set when fewer than `count`.
std::size_t write_some(int file, const char* bytes, std::size_t count) {
    std::size_t done = 0;
    while (done < count) {
        const ssize_t wrote = ::write(file, bytes + done, count - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            break;
        }
        done += static_cast<std::size_t>(wrote);
    }
    return done;
}

}  // namespace

bool OutputSink::carry() {
    char buffer[kCarryBytes];
    const ssize_t got = ::read(pipe_.get(), buffer, sizeof buffer);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (got <= 0) {
        pipe_.reset();
        return false;
    }
    store(buffer, static_cast<std::size_t>(got));
    return true;
}

void OutputSink::finish() {
    // A pipe holds at most 1 MiB for an ordinary user; a writer that outlives the job (the pipe was
    // passed to a stranger) must not keep us.
    for (int round = 0; round < 1024 && pipe_.is_open() && carry(); ++round) {
    }
    pipe_.reset();
    if (lost_ > 0) {
        note_loss();
    }
}

void OutputSink::store(const char* bytes, std::size_t count) {
    const auto room = static_cast<std::size_t>(std::max<std::int64_t>(bytes_max_ - written_, 0));
    if (count > room) {
        if (!limit_noted_ && lost_ == 0) {
            const std::size_t fits = write_some(file_.get(), bytes, room);
            written_ += static_cast<std::int64_t>(fits);
            const std::string note = fmt::format(
                "\n[holdfast] output beyond {} bytes is dropped; write it to a file\n", bytes_max_);
            limit_noted_ = write_some(file_.get(), note.data(), note.size()) == note.size();
        }
        return;
    }
    if (lost_ > 0 && !note_loss()) {
        lost_ += static_cast<std::int64_t>(count);
        lost_total_ += static_cast<std::int64_t>(count);
        return;
    }
    const std::size_t done = write_some(file_.get(), bytes, count);
    written_ += static_cast<std::int64_t>(done);
    if (done < count) {
        lost_errno_ = errno;
        lost_ += static_cast<std::int64_t>(count - done);
        lost_total_ += static_cast<std::int64_t>(count - done);
    }
}

bool OutputSink::note_loss() {
    const std::string note = fmt::format("\n[holdfast] {} bytes of output were lost here: {}\n",
                                         lost_, errno_text(lost_errno_));
    const std::size_t done = write_some(file_.get(), note.data(), note.size());
    if (done < note.size()) {
        // A torn note would lie; take it back. The file is ours alone.
        const off_t end = ::lseek(file_.get(), 0, SEEK_END);
        if (done > 0 && end >= static_cast<off_t>(done) &&
            ::ftruncate(file_.get(), end - static_cast<off_t>(done)) != 0) {
            return false;
        }
        return false;
    }
    lost_ = 0;
    return true;
}

}  // namespace holdfast::agent
