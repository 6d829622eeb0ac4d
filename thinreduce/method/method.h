// A method: one published algorithm, from a rank's bucket to the mean at every rank.
//
// There is one Method object a bucket; it keeps that bucket's residuals. A new method is one file
// pair in this folder and one line in registry.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/method/bucket.h"
#include "thinreduce/method/options.h"

namespace thinreduce {

class Archive;

// How payloads combine; it decides the collective.
enum class Algebra {
  sum,          // payloads add as floats, inside a ring
  integer_sum,  // payloads add as integers, inside a ring
  gather,       // payloads are decoded and added in rank order
  staged,       // one group first; its mean helps to decode the other's payloads
};
[[nodiscard]] const char* to_string(Algebra algebra);

class Method {
 public:
  Method() = default;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;
  virtual ~Method() = default;

  // Replaces bucket.values by the mean over all ranks: the same bits on every rank. The values are
  // finite. What is not sent goes into the residual. Throws Error when a peer fails or sends
  // nonsense; what was taken in and not delivered is then still in the residual.
  virtual void reduce(const Bucket& bucket, Exchange& exchange) = 0;

  // Adds this rank's residual to `values`, one per element of the bucket: the gradient that
  // reduce() took in and has not delivered yet.
  virtual void add_residual(std::span<float> /*values*/) {}

  // Called with means that travelled uncompressed: all elements of the bucket in a warm-up step,
  // otherwise those outside the tensors of the layout, side by side. A method with momentum inside
  // turns them into updates here.
  virtual void finish_uncompressed(std::span<float> /*means*/) {}

  // Shows every piece of state to the archive, for saving and loading.
  virtual void state(Archive& /*archive*/) {}

  // Of state that must have the same bits on all ranks; compared before every reduce.
  [[nodiscard]] virtual std::uint64_t fingerprint() const { return 0; }
};

// What a method is made for.
struct MethodSetup {
  BucketLayout layout;
  int rank = 0;
  int world = 1;
  std::uint64_t seed = 0;
};

// Methods that do not compress every step alike: so many uncompressed steps at the start, then the
// pattern repeats after `steps`. Benchmarks need to know.
struct Cycle {
  std::uint64_t start = 0;
  std::uint64_t steps = 1;
};

// Of a spec `this+other:options`: the other method and its options.
struct InnerMethod {
  std::string name;
  Options options;
};

struct MethodInfo {
  std::string name;
  std::uint16_t wire_id = 0;  // in frames; never reused
  Algebra algebra = Algebra::sum;
  std::string summary;
  std::string paper;
  // reduce() reads Bucket::second_moment when there is one; callers that can compute it should.
  bool second_moment = false;
  std::vector<OptionInfo> options;
  std::function<std::unique_ptr<Method>(const Options&, const MethodSetup&)> make;
  // Throws Error{bad_spec} for options that are in range, each by itself, but contradict each
  // other. Called when a spec is parsed; `make` would be too late, in the middle of a session.
  std::function<void(const Options&)> check = [](const Options&) {};
  // Methods that can quantize what this one sends; with any, there are `make_composed` and
  // `check_composed`.
  std::vector<std::string> composes_with = {};
  std::function<std::unique_ptr<Method>(const Options&, const InnerMethod&, const MethodSetup&)>
      make_composed = {};
  std::function<void(const Options&, const InnerMethod&)> check_composed = {};
  // Returns whether the method hands back an update with momentum inside instead of a mean: the
  // optimizer must then add none. Such a method is also made for a bucket of which nothing is
  // compressed, with a layout without elements, for finish_uncompressed().
  std::function<bool(const Options&)> momentum_inside = [](const Options&) { return false; };
  std::function<Cycle(const Options&)> cycle = [](const Options&) { return Cycle{}; };
};

}  // namespace thinreduce
