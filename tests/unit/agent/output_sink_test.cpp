// SPDX-License-Identifier: Apache-2.0
#include "output_sink.hpp"

#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

struct Ends {
    Fd reader;
    Fd writer;
};

Ends make_pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(::fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    return {Fd(ends[0]), Fd(ends[1])};
}

std::string content(int file) {
    std::string text(1 << 20, '\0');
    const ssize_t got = ::pread(file, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return text;
}

Fd temporary_file() {
    char name[] = "/tmp/holdfast_sink_XXXXXX";
    const int file = ::mkostemp(name, O_APPEND | O_CLOEXEC);
    ::unlink(name);
    return Fd(file);
}

void say(const Fd& writer, const std::string& text) {
    ASSERT_EQ(::write(writer.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

TEST(OutputSink, CarriesBytesExactly) {
    Ends ends = make_pipe();
    Fd file = temporary_file();
    const int check = ::dup(file.get());
    OutputSink sink(std::move(ends.reader), std::move(file), 1 << 20);
    EXPECT_FALSE(sink.carry());
    const std::string text = std::string("a\0b\n", 4) + std::string(5000, 'x');
    say(ends.writer, text);
    EXPECT_TRUE(sink.carry());
    EXPECT_EQ(content(check), text);
    ends.writer.reset();
    sink.finish();
    EXPECT_EQ(sink.pipe(), -1);
    EXPECT_EQ(sink.lost_bytes(), 0);
    ::close(check);
}

TEST(OutputSink, LimitIsNotedOnce) {
    Ends ends = make_pipe();
    Fd file = temporary_file();
    const int check = ::dup(file.get());
    OutputSink sink(std::move(ends.reader), std::move(file), 10);
    for (int i = 0; i < 3; ++i) {
        say(ends.writer, "12345678");
        sink.carry();
    }
    ends.writer.reset();
    sink.finish();
    EXPECT_EQ(content(check),
              "1234567812\n[holdfast] output beyond 10 bytes is dropped; write it to a file\n");
    ::close(check);
}

TEST(OutputSink, FullDiskDoesNotStopTheWriter) {
    Ends ends = make_pipe();
    Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(full.is_open());
    const int other = ::dup(full.get());
    OutputSink sink(std::move(ends.reader), std::move(full), 1 << 20);
    say(ends.writer, "lost");
    EXPECT_TRUE(sink.carry());
    EXPECT_EQ(sink.lost_bytes(), 4);
    say(ends.writer, "lost too");
    EXPECT_TRUE(sink.carry());
    EXPECT_EQ(sink.lost_bytes(), 12);
    ends.writer.reset();
    sink.finish();
    EXPECT_EQ(sink.lost_bytes(), 12);
    ::close(other);
}

TEST(OutputSink, SpaceThatReturnsIsUsedAndTheLossNoted) {
    Ends ends = make_pipe();
    Fd file(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    const int number = file.get();
    OutputSink sink(std::move(ends.reader), std::move(file), 1 << 20);
    say(ends.writer, "lost");
    sink.carry();
    const Fd disk = temporary_file();
    ASSERT_EQ(::dup2(disk.get(), number), number);  // the disk has room again
    say(ends.writer, "kept\n");
    sink.carry();
    EXPECT_EQ(content(disk.get()),
              "\n[holdfast] 4 bytes of output were lost here: No space left on device\nkept\n");
    ends.writer.reset();
    sink.finish();
    EXPECT_EQ(sink.lost_bytes(), 4);
}

}  // namespace
}  // namespace holdfast::agent
