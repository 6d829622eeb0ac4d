// A method: one published algorithm that turns every rank's bucket into the mean at every rank.
//
// There is one Method object per bucket and rank; it keeps that bucket's residual.
// docs/adding-a-method.md shows how to write one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/method/options.h"

namespace thinreduce {

class Archive;

// How payloads combine, which decides the collective.
enum class Algebra {
  sum,          // payloads add as floats
  integer_sum,  // payloads add as integers
  gather,       // payloads are decoded and added in rank order
  staged,       // the mean of one group of ranks helps to decode the payloads of the others
};
[[nodiscard]] const char* to_string(Algebra algebra);

class Method {
 public:
  Method() = default;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;
  virtual ~Method() = default;

  // Replaces bucket.values, which are finite, by the mean over all ranks: the same bits on every
  // rank. Gradient that is not sent must stay in the residual. Throws Error when a peer fails or
  // sends impossible bytes, and std::bad_alloc when memory runs out, at any allocation; the
  // residual must then hold the whole gradient, and state that must be the same on all ranks must
  // be as before. So a method takes its gradient in before it allocates anything, or catches what
  // is thrown until then; it settles both after its last message, and allocates nothing from there
  // on.
  virtual void reduce(const Bucket& bucket, Exchange& exchange) = 0;

  // Adds this rank's residual to `values`, one per element of the bucket: the gradient that
  // reduce() took in and has not delivered yet.
  virtual void add_residual(std::span<float> /*values*/) {}

  // Called with means that travelled uncompressed: all elements of the bucket in a warm-up step,
  // otherwise those outside the tensors of the layout, side by side. A method that hands out
  // updates turns them into updates here.
  virtual void finish_uncompressed(std::span<float> /*means*/) {}

  // Shows every piece of state to the archive, for saving and loading.
  virtual void state(Archive& /*archive*/) {}

  // Returns a hash of the state that must have the same bits on all ranks. The ranks compare it
  // before every reduce.
  [[nodiscard]] virtual std::uint64_t fingerprint() const { return 0; }
};

// The arguments of a method's factory.
struct MethodSetup {
  BucketLayout layout;  // with only the tensors to compress, as in Bucket
  int rank = 0;
  int world = 1;
  std::uint64_t seed = 0;
  // For a trial on a sample of a bucket: how many times larger the bucket is. The method must
  // choose as for the bucket.
  double stands_for = 1;
};

// The rhythm of a method whose steps differ. Benchmarks must average over whole cycles.
struct Cycle {
  std::uint64_t start = 0;  // uncompressed steps at the start
  std::uint64_t steps = 1;  // steps after which the pattern repeats
};

// The second method of a spec `a+b:options`, with its options.
struct InnerMethod {
  std::string name;
  Options options;
};

// A named set of option values: `preset=name` in a spec stands for them.
struct Preset {
  std::string name;
  std::string options;  // as in a spec: "density=0.01,feedback=off"
  std::string help;
};

// What reduce() returns where that is no mean: the update that the optimizer must apply without
// adding momentum.
struct Update {
  double momentum = 0;       // factor of the momentum inside the update
  bool signs = false;        // whether the update is the signs of the mean, for plain SGD
  std::string without = {};  // the option and value with which reduce() returns means
};

// The parts of a residual that a method loses on purpose.
struct Losses {
  double decay = 1;       // factor of the residual at the end of every step that succeeds
  bool discards = false;  // whether gradient is discarded in another way
};

struct MethodInfo {
  std::string name;
  std::uint16_t wire_id = 0;  // identifies the method in frames; never reused
  Algebra algebra = Algebra::sum;
  std::string summary;
  std::string paper;
  // Whether reduce() sends less than float32. If not, it is a sum of floats, which may overflow.
  bool compresses = true;
  // Whether reduce() uses Bucket::second_moment when it is given.
  bool second_moment = false;
  std::vector<OptionInfo> options;
  std::vector<Preset> presets = {};
  std::function<std::unique_ptr<Method>(const Options&, const MethodSetup&)> make;
  // Throws Error{bad_spec} for options that contradict each other although each is in range. Called
  // when a spec is parsed, because an error in `make` ends the session.
  std::function<void(const Options&)> check = [](const Options&) {};
  // Names of the methods that can quantize the values that this one sends. If there are any,
  // `make_composed` and `check_composed` must be set.
  std::vector<std::string> composes_with = {};
  std::function<std::unique_ptr<Method>(const Options&, const InnerMethod&, const MethodSetup&)>
      make_composed = {};
  std::function<void(const Options&, const InnerMethod&)> check_composed = {};
  // Returns the update, if reduce() returns one in place of a mean. Such a method also gets the
  // means of buckets in which nothing is compressed: it is then made for a layout without elements,
  // and only finish_uncompressed() and state() are called.
  std::function<std::optional<Update>(const Options&)> update = [](const Options&) {
    return std::optional<Update>();
  };
  // Returns what is lost of the residual, if there is one. The property tests allow for no more.
  std::function<Losses(const Options&)> losses = [](const Options&) { return Losses{}; };
  std::function<Cycle(const Options&)> cycle = [](const Options&) { return Cycle{}; };
};

}  // namespace thinreduce
