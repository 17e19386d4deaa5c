// SPDX-License-Identifier: Apache-2.0
// Joining over TCP: who is let in, who is turned away, and that strangers disturb nobody.
#include "comm/tcp_handshake.h"
#include "comm/tcp_listener.h"
#include "comm/tcp_socket.h"
#include "unit/comm/spawn.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <future>

namespace inferd::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr std::string_view kSecret = "correct horse battery staple";

using Joined = Result<std::unique_ptr<Communicator>>;

std::unique_ptr<TcpListener> Listener() {
  auto listener = ListenTcp("127.0.0.1");
  EXPECT_TRUE(listener.ok());
  return *std::move(listener);
}

/// A group on loopback whose ranks are joined one by one by the test.
struct Group {
  explicit Group(int size, milliseconds join_deadline = milliseconds(5000)) {
    options.id = FreshId();
    options.generation = 3;
    options.size = size;
    options.join_deadline = join_deadline;
    options.call_deadline = milliseconds(5000);
    for (int r = 0; r < size; ++r) {
      listeners.push_back(Listener());
      endpoints.push_back(listeners.back()->endpoint());
    }
  }

  Joined Join(int rank, std::string_view secret = kSecret) {
    GroupOptions own = options;
    own.rank = rank;
    return JoinTcp(own, *listeners[static_cast<std::size_t>(rank)], endpoints, secret);
  }
  std::future<Joined> JoinAsync(int rank, std::string_view secret = kSecret) {
    return std::async(std::launch::async, [this, rank, secret] { return Join(rank, secret); });
  }

  GroupOptions options;
  std::vector<std::unique_ptr<TcpListener>> listeners;
  std::vector<std::string> endpoints;
};

std::string Outcome(const Joined& joined) {
  return joined.ok()
             ? "ok"
             : std::string(CodeName(joined.error().code())) + ": " + joined.error().message();
}

/// A stranger's connection, with blocking reads bounded by three seconds.
base::UniqueFd ConnectTo(const std::string& endpoint) {
  auto address = ParseEndpoint(endpoint);
  EXPECT_TRUE(address.ok());
  base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address->storage), address->length),
            0);
  const timeval patience = {.tv_sec = 3, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

/// Reads until the other side closes; answers how many bytes came, or -1 when it did not close.
ssize_t ReadToEnd(int fd) {
  std::array<char, 4096> data = {};
  ssize_t total = 0;
  while (true) {
    const ssize_t n = ::recv(fd, data.data(), data.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return -1;
    }
    if (n <= 0) {
      return total;
    }
    total += n;
  }
}

void ExpectSum(Communicator& comm) {
  std::vector<float> data(1000, static_cast<float>(comm.rank() + 1));
  EXPECT_EQ(Say(comm.AllReduceSum(data)), "");
  EXPECT_EQ(data[999], static_cast<float>(comm.size() * (comm.size() + 1) / 2));
}

TEST(TcpTest, Endpoints) {
  for (const char* text : {"127.0.0.1:80", "[::1]:65535"}) {
    const auto address = ParseEndpoint(text);
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(FormatEndpoint(*address), text);
  }
  for (const char* text : {"",
                           ":",
                           "127.0.0.1",
                           "127.0.0.1:",
                           "127.0.0.1:0",
                           "127.0.0.1:65536",
                           "localhost:80",
                           "1.2.3.4:8x"}) {
    EXPECT_FALSE(ParseEndpoint(text).ok()) << text;
  }
}

TEST(TcpTest, RefusesToListenEverywhere) {
  for (const char* address : {"0.0.0.0", "::"}) {
    const auto listener = ListenTcp(address);
    ASSERT_FALSE(listener.ok());
    EXPECT_EQ(listener.error().code(), Code::kInvalidArgument);
  }
  EXPECT_FALSE(ListenTcp("not an address").ok());
}

TEST(TcpTest, RefusesWrongOptions) {
  Group group(2);
  EXPECT_THAT(Outcome(group.Join(0, "")), HasSubstr("INVALID_ARGUMENT: the group has no secret"));
  group.endpoints.pop_back();
  EXPECT_THAT(Outcome(group.Join(0)), HasSubstr("INVALID_ARGUMENT: 1 endpoints"));
}

TEST(TcpTest, OneRankIsAGroup) {
  Group group(1);
  auto comm = group.Join(0);
  ASSERT_TRUE(comm.ok());
  ExpectSum(**comm);
  EXPECT_EQ(Say((*comm)->Barrier()), "");
}

TEST(TcpTest, NamesWhoNeverCame) {
  Group group(3, milliseconds(300));
  auto rank0 = group.JoinAsync(0);
  auto rank2 = group.JoinAsync(2);
  EXPECT_THAT(Outcome(rank0.get()),
              testing::AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("rank 1 at")));
  EXPECT_THAT(Outcome(rank2.get()),
              testing::AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("rank 1 at")));
}

TEST(TcpTest, ConnectsToARankThatRefusesAtFirst) {
  Group group(2);
  auto address = ParseEndpoint(group.endpoints[0]);
  ASSERT_TRUE(address.ok());
  // A listener that shuts the first connections: rank 1 has to try again.
  group.listeners[0].reset();
  auto slammer = Listen(*address);
  ASSERT_TRUE(slammer.ok()) << slammer.error().message();
  auto rank1 = group.JoinAsync(1);
  for (int closed = 0, ms = 0; closed < 3 && ms < 3000; ++ms) {
    closed += Accept(slammer->get()).valid() ? 1 : 0;
    ::poll(nullptr, 0, 1);
  }
  group.listeners[0] = std::make_unique<TcpListenerSocket>(*std::move(slammer), group.endpoints[0]);
  auto rank0 = group.Join(0);
  auto joined1 = rank1.get();
  EXPECT_TRUE(rank0.ok() && joined1.ok()) << Outcome(rank0) << " " << Outcome(joined1);
}

TEST(TcpTest, WrongSecretIsRefusedAtOnce) {
  Group group(2, milliseconds(700));
  auto rank0 = group.JoinAsync(0);
  const auto start = steady_clock::now();
  const std::string outcome = Outcome(group.Join(1, "wrong"));
  EXPECT_LT(steady_clock::now() - start, milliseconds(500));
  EXPECT_THAT(
      outcome,
      testing::AllOf(HasSubstr("UNAUTHENTICATED"), HasSubstr("rank 0 at"), HasSubstr("secret")));
  EXPECT_THAT(
      Outcome(rank0.get()),
      testing::AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("turned away 1 connections")));
}

TEST(TcpTest, StrangerWithWrongSecretDoesNotDisturbTheGenuine) {
  Group group(2);
  auto rank0 = group.JoinAsync(0);
  EXPECT_FALSE(group.Join(1, "wrong").ok());
  auto rank1 = group.Join(1);
  auto joined0 = rank0.get();
  ASSERT_TRUE(joined0.ok() && rank1.ok()) << Outcome(joined0) << " " << Outcome(rank1);
  std::thread other([&] { ExpectSum(**joined0); });
  ExpectSum(**rank1);
  other.join();
}

TEST(TcpTest, OtherGenerationsAreNotMixed) {
  Group group(2, milliseconds(400));
  Group later(2, milliseconds(400));
  later.options.id = group.options.id;
  later.options.generation = group.options.generation + 1;
  later.endpoints[0] = group.endpoints[0];
  auto rank0 = group.JoinAsync(0);
  // Its proof is good, so the listener keeps it for a later join; this group does not take it.
  auto rank1 = later.Join(1);
  EXPECT_TRUE(rank1.ok()) << Outcome(rank1);
  EXPECT_THAT(Outcome(rank0.get()), HasSubstr("DEADLINE_EXCEEDED"));
  GroupOptions own = later.options;
  auto later0 = JoinTcp(own, *group.listeners[0], later.endpoints, kSecret);
  ASSERT_TRUE(later0.ok()) << Outcome(later0);
  std::thread other([&] { ExpectSum(**rank1); });
  ExpectSum(**later0);
  other.join();
}

TEST(TcpTest, OtherSizeIsRefused) {
  Group group(2, milliseconds(400));
  Group wider(3, milliseconds(400));
  wider.options.id = group.options.id;
  wider.endpoints[0] = group.endpoints[0];
  auto rank0 = group.JoinAsync(0);
  EXPECT_THAT(Outcome(wider.Join(1)),
              testing::AllOf(HasSubstr("UNAUTHENTICATED"), HasSubstr("group size")));
  EXPECT_FALSE(rank0.get().ok());
}

TEST(TcpTest, SwappedEndpointsAreRefused) {
  Group group(3, milliseconds(600));
  auto rank1 = group.JoinAsync(1);
  // Rank 2 is told that rank 0 lives where rank 1 does.
  Group liar(0);
  liar.options = group.options;
  liar.options.rank = 2;
  liar.endpoints = {group.endpoints[1], group.endpoints[0], group.endpoints[2]};
  const auto joined = JoinTcp(liar.options, *group.listeners[2], liar.endpoints, kSecret);
  EXPECT_THAT(Outcome(joined),
              testing::AllOf(HasSubstr("UNAUTHENTICATED"), HasSubstr("another rank")));
  EXPECT_FALSE(rank1.get().ok());
}

TEST(TcpTest, GarbageIsClosedWithinASecondAndIgnored) {
  Group group(2);
  auto rank0 = group.JoinAsync(0);
  std::vector<base::UniqueFd> strangers;
  for (int i = 0; i < 8; ++i) {
    strangers.push_back(ConnectTo(group.endpoints[0]));
  }
  // Long garbage is judged as soon as a hello's length is there, short garbage and silence when
  // patience ends.
  const std::string garbage(10'000, 'x');
  for (std::size_t i = 0; i < 4; ++i) {
    ::send(strangers[i].get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
  ::send(strangers[4].get(), garbage.data(), 50, MSG_NOSIGNAL);
  const auto start = steady_clock::now();
  for (std::size_t i = 0; i < 4; ++i) {
    const ssize_t n = ReadToEnd(strangers[i].get());
    EXPECT_LE(n, static_cast<ssize_t>(kGreetingBytes + kVerdictBytes));
    EXPECT_GE(n, 0);
  }
  EXPECT_LT(steady_clock::now() - start, milliseconds(500));
  for (std::size_t i = 4; i < strangers.size(); ++i) {
    EXPECT_EQ(ReadToEnd(strangers[i].get()), static_cast<ssize_t>(kGreetingBytes));
  }
  EXPECT_LT(steady_clock::now() - start, milliseconds(1500));
  auto rank1 = group.Join(1);
  auto joined0 = rank0.get();
  ASSERT_TRUE(joined0.ok() && rank1.ok()) << Outcome(joined0) << " " << Outcome(rank1);
  std::thread other([&] { ExpectSum(**joined0); });
  ExpectSum(**rank1);
  other.join();
}

TEST(TcpTest, FloodOfSilentStrangersDoesNotKeepTheGenuineOut) {
  Group group(2, milliseconds(10'000));
  auto rank0 = group.JoinAsync(0);
  std::vector<base::UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(ConnectTo(group.endpoints[0]));
  }
  auto rank1 = group.Join(1);
  auto joined0 = rank0.get();
  EXPECT_TRUE(joined0.ok() && rank1.ok()) << Outcome(joined0) << " " << Outcome(rank1);
}

TEST(TcpTest, ReplayedHelloIsRefused) {
  // Two server handshakes greet with different nonces, so what was good for one is not for the
  // other.
  const auto address = [] {
    auto parsed = ParseAddress("127.0.0.1", 0);
    EXPECT_TRUE(parsed.ok());
    return *parsed;
  }();
  SocketAddress bound = address;
  auto listener = Listen(bound);
  ASSERT_TRUE(listener.ok());
  Hello hello;
  hello.group = GroupDigest("g");
  hello.from = 1;
  hello.size = 2;
  Hello expected = hello;
  expected.from = 0;

  // A relay between an honest client and a first server records the hello.
  base::UniqueFd first = ConnectTo(FormatEndpoint(bound));
  ServerHandshake server1(Accept(listener->get()), kSecret);
  std::array<int, 2> ends = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const base::UniqueFd relay(ends[0]);
  ClientHandshake client(base::UniqueFd(ends[1]), kSecret, hello);
  server1.Advance(expected);
  std::array<char, 256> data = {};
  ASSERT_EQ(::recv(first.get(), data.data(), kGreetingBytes, MSG_WAITALL),
            static_cast<ssize_t>(kGreetingBytes));
  ASSERT_EQ(::send(relay.get(), data.data(), kGreetingBytes, 0),
            static_cast<ssize_t>(kGreetingBytes));
  EXPECT_EQ(client.Advance(), HandshakeState::kReading);
  constexpr std::size_t kWhole = kHelloBytes + kDigestBytes;
  std::array<char, kWhole> recorded = {};
  ASSERT_EQ(::recv(relay.get(), recorded.data(), kWhole, MSG_WAITALL),
            static_cast<ssize_t>(kWhole));
  ASSERT_EQ(::send(first.get(), recorded.data(), kWhole, 0), static_cast<ssize_t>(kWhole));
  for (int ms = 0; ms < 1000 && server1.Advance(expected) == HandshakeState::kReading; ++ms) {
    ::poll(nullptr, 0, 1);
  }
  EXPECT_EQ(server1.state(), HandshakeState::kDone);
  EXPECT_EQ(server1.hello(), hello);

  const base::UniqueFd second = ConnectTo(FormatEndpoint(bound));
  ServerHandshake server2(Accept(listener->get()), kSecret);
  ASSERT_EQ(::send(second.get(), recorded.data(), kWhole, 0), static_cast<ssize_t>(kWhole));
  for (int ms = 0; ms < 1000 && server2.Advance(expected) != HandshakeState::kFailed; ++ms) {
    ::poll(nullptr, 0, 1);
  }
  EXPECT_EQ(server2.state(), HandshakeState::kFailed);
}

TEST(TcpTest, ImpostorListenerIsUnmasked) {
  // A listener that welcomes everyone but does not know the secret.
  Group group(2, milliseconds(2000));
  std::thread impostor([&] {
    auto address = ParseAddress("127.0.0.1", 0);
    auto listener = Listen(*address);
    group.endpoints[0] = FormatEndpoint(*address);
    auto rank1 = group.JoinAsync(1);
    base::UniqueFd fd;
    for (int ms = 0; ms < 1000 && !fd.valid(); ++ms) {
      ::poll(nullptr, 0, 1);
      fd = Accept(listener->get());
    }
    std::string greeting("inferd\0\1", 8);
    greeting.resize(kGreetingBytes, 'n');
    ::send(fd.get(), greeting.data(), greeting.size(), 0);
    const std::string verdict(kVerdictBytes, '\0');  // "welcome", with a made-up proof
    ::send(fd.get(), verdict.data(), verdict.size(), 0);
    EXPECT_THAT(Outcome(rank1.get()),
                testing::AllOf(HasSubstr("UNAUTHENTICATED"), HasSubstr("could not prove")));
  });
  impostor.join();
}

TEST(TcpTest, OneListenerServesSeveralGroups) {
  // Rank 0 of both groups is the same worker; rank 1 of the second group knocks before the first
  // group is whole.
  Group first(2);
  Group second(2);
  second.endpoints[0] = first.endpoints[0];
  auto early = second.JoinAsync(1);
  auto rank0 = std::async(std::launch::async, [&] {
    auto a = first.Join(0);
    GroupOptions own = second.options;
    auto b = JoinTcp(own, *first.listeners[0], second.endpoints, kSecret);
    return std::pair(std::move(a), std::move(b));
  });
  auto joined_early = early.get();
  ASSERT_TRUE(joined_early.ok()) << Outcome(joined_early);
  auto late = first.Join(1);
  auto [a, b] = rank0.get();
  ASSERT_TRUE(late.ok() && a.ok() && b.ok()) << Outcome(late) << Outcome(a) << Outcome(b);
  std::thread t1([&] { ExpectSum(**late); });
  std::thread t2([&] { ExpectSum(**joined_early); });
  ExpectSum(**a);
  ExpectSum(**b);
  t1.join();
  t2.join();
}

TEST(TcpTest, LongMessagesBothWaysDoNotBlockEachOther) {
  SpawnOptions options;
  options.backend = Backend::kTcpThreads;
  SpawnAndExpect(options, [](Communicator& comm) {
    std::vector<std::byte> data(20U << 20, static_cast<std::byte>(comm.rank() + 1));
    std::string said = Say(comm.Send(data, 1 - comm.rank()));
    said += Say(comm.Recv(data, 1 - comm.rank()));
    return data.back() == static_cast<std::byte>(2 - comm.rank()) ? said : said + "wrong bytes";
  });
}

}  // namespace
}  // namespace inferd::comm
