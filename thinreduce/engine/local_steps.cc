#include "thinreduce/engine/local_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <numeric>
#include <optional>
#include <utility>

#include "thinreduce/engine/outer_step.h"
#include "thinreduce/engine/settings.h"
#include "thinreduce/engine/state_file.h"
#include "thinreduce/ensure.h"
#include "thinreduce/error.h"
#include "thinreduce/method/archive.h"
#include "thinreduce/method/spec.h"

namespace thinreduce {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_input, "local steps: " + why);
}

// Divides tensors of these sizes into `count` parts of about equal size: the largest first, each to
// the part that is smallest so far. Within a part the order stays.
std::vector<std::vector<std::size_t>> divide(const std::vector<Tensor>& tensors,
                                             std::size_t count) {
  std::vector<std::size_t> by_size(tensors.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::ranges::stable_sort(by_size, std::greater<>(),
                           [&](std::size_t i) { return tensors[i].elements(); });
  std::vector<std::vector<std::size_t>> parts(count);
  std::vector<std::size_t> sizes(count);
  for (const std::size_t i : by_size) {
    const auto smallest = static_cast<std::size_t>(std::ranges::min_element(sizes) - sizes.begin());
    parts[smallest].push_back(i);
    sizes[smallest] += std::max<std::size_t>(1, tensors[i].elements());
  }
  for (auto& part : parts) std::ranges::sort(part);
  return parts;
}

// The numbers of a fragment that are saved.
struct Numbers {
  std::vector<float> anchor;
  std::vector<float> velocity;  // of the outer step; empty without momentum
  std::uint64_t started = 0;    // step after which the last exchange was started
  bool under_way = false;
  std::vector<float> values;  // of an exchange under way: difference, then mean
  std::vector<float> start;   // and the parameters at its start

  void show(Archive& archive) {
    archive.replicated("anchor", anchor, Archive::Length::per_element);
    archive.replicated("velocity", velocity, Archive::Length::per_element_or_none);
    archive.count("started", started, Archive::kMaxSteps);
    archive.flag("under_way", under_way);
    archive.replicated("mean", values, Archive::Length::per_element_or_none);
    archive.replicated("start", start, Archive::Length::per_element_or_none);
  }
};

struct Fragment {
  std::vector<std::size_t> members;
  BucketHandle bucket;
  Numbers numbers;
  std::optional<std::future<Report>> pending;  // unset once the mean is there
  Report report{};
};

}  // namespace

std::string LocalStepsOptions::settings() const {
  if (every < 1 || every > kMaxEvery) {
    refuse(fmt::format("every must be 1 to {} steps, got {}", kMaxEvery, every));
  }
  if (fragments < 1 || fragments > every) {
    refuse(
        fmt::format("fragments must be 1 to {}, because a round has {} local steps; got "
                    "fragments={}",
                    every, every, fragments));
  }
  if (overlap >= every) {
    refuse(
        fmt::format("overlap must be below {}, because a round has {} local steps; got "
                    "overlap={}",
                    every, every, overlap));
  }
  return fmt::format(
      "LocalSteps.every={} LocalSteps.outer={} LocalSteps.fragments={} LocalSteps.overlap={}",
      every, OuterStep::parse(outer).to_string(), fragments, overlap);
}

bool LocalStepsOptions::momentum() const {
  return OuterStep::parse(outer).momentum > 0;
}

struct LocalSteps::Implementation {
  Implementation(Session& given, const LocalStepsOptions& options_given,
                 const std::vector<Tensor>& tensors)
      : session(given),
        options(options_given),
        settings(options.settings()),
        outer(OuterStep::parse(options.outer)) {
    if (options.fragments > tensors.size()) {
      refuse(fmt::format("fragments must be at most {}, the tensors of the model, got {}",
                         tensors.size(), options.fragments));
    }
    for (auto& members : divide(tensors, options.fragments)) {
      const auto id = static_cast<std::uint32_t>(options.first_id + fragments.size());
      BucketLayout layout{.id = id, .elements = 0, .tensors = {}, .spec = options.spec};
      layout.kind = options.kind;
      for (const std::size_t i : members) layout.add(tensors[i].name, tensors[i].shape);
      Numbers numbers;
      numbers.anchor.resize(layout.elements);
      if (outer.momentum > 0) numbers.velocity.resize(layout.elements);
      BucketHandle bucket = session.add_bucket(std::move(layout));
      refuse_signs(Spec::parse(bucket.spec()));
      fragments.push_back(
          {std::move(members), std::move(bucket), std::move(numbers), std::nullopt});
    }
  }

  // Fragment f is started after this many steps of a round.
  [[nodiscard]] std::uint64_t turn(std::size_t f) const {
    return (f + 1) * options.every / fragments.size();
  }

  Fragment& at(std::size_t f) {
    ensure(f < fragments.size(), "local steps: no such fragment", f, fragments.size());
    return fragments[f];
  }
  Fragment& at(std::size_t f, std::size_t parameters) {
    Fragment& fragment = at(f);
    const std::size_t elements = fragment.numbers.anchor.size();
    if (parameters != elements) {
      refuse(
          fmt::format("fragment {} has {} elements, got {} parameters", f, elements, parameters));
    }
    return fragment;
  }

  // Waits until the mean is there.
  void arrive(std::size_t f) {
    Fragment& fragment = at(f);
    if (!fragment.pending) return;
    auto pending = std::move(*fragment.pending);
    fragment.pending.reset();
    try {
      fragment.report = pending.get();
    } catch (const Error& error) {
      fragment.numbers.under_way = false;
      fragment.numbers.started = 0;  // its steps are still to be sent
      fragment.numbers.values = {};
      fragment.numbers.start = {};
      if (!error.is_nonfinite()) failure = error.what();
      throw;
    }
  }

  void wait_for_all() noexcept {
    for (Fragment& fragment : fragments) {
      if (fragment.pending) fragment.pending->wait();
    }
  }

  void check(const SessionState& state) const {
    const auto refuse_state = [](const std::string& why) {
      throw Error(ErrorCode::bad_state, "saved local steps: " + why);
    };
    if (state.world != session.size() || state.rank != session.rank()) {
      refuse_state(
          fmt::format("they belong to rank {} of {}, this is rank {} of {}; load the "
                      "state that this rank saved",
                      state.rank, state.world, session.rank(), session.size()));
    }
    if (state.settings != settings) {
      refuse_state(fmt::format("they were saved with '{}', these have '{}'; use the saved settings",
                               state.settings, settings));
    }
    bool fits = state.buckets.size() == fragments.size();
    for (std::size_t f = 0; fits && f < fragments.size(); ++f) {
      const auto found = state.buckets.find(static_cast<std::uint32_t>(f));
      fits = found != state.buckets.end() &&
             found->second.elements == fragments[f].numbers.anchor.size() &&
             found->second.step == state.buckets.begin()->second.step;
    }
    if (!fits) refuse_state("their fragments are not those of this model; load them into the same");
  }

  Session& session;
  LocalStepsOptions options;
  std::string settings;
  OuterStep outer;
  std::vector<Fragment> fragments;
  std::uint64_t step = 0;
  std::string failure;  // of an exchange; empty: none
};

LocalSteps::LocalSteps(Session& session, const LocalStepsOptions& options,
                       const std::vector<Tensor>& tensors)
    : own_(std::make_unique<Implementation>(session, options, tensors)) {}
LocalSteps::~LocalSteps() {
  own_->wait_for_all();
}

std::size_t LocalSteps::fragments() const {
  return own_->fragments.size();
}
const BucketLayout& LocalSteps::layout(std::size_t fragment) const {
  return own_->at(fragment).bucket.layout();
}
const std::vector<std::size_t>& LocalSteps::members(std::size_t fragment) const {
  return own_->at(fragment).members;
}
std::span<const float> LocalSteps::anchor(std::size_t fragment) const {
  return own_->at(fragment).numbers.anchor;
}
std::uint64_t LocalSteps::step() const {
  return own_->step;
}
bool LocalSteps::under_way(std::size_t fragment) const {
  return own_->at(fragment).numbers.under_way;
}

bool LocalSteps::has_steps(std::size_t fragment) const {
  return own_->at(fragment).numbers.started != own_->step;
}

void LocalSteps::set_anchor(std::size_t fragment, std::span<const float> parameters) {
  std::ranges::copy(parameters, own_->at(fragment, parameters.size()).numbers.anchor.begin());
}

LocalStepsDue LocalSteps::advance() {
  LocalStepsDue due;
  ++own_->step;
  for (std::size_t f = 0; f < fragments(); ++f) {
    const auto since = own_->step + own_->options.every - own_->turn(f) % own_->options.every;
    const auto steps = since % own_->options.every;  // since the fragment's turn
    if (steps == 0) due.start.push_back(f);
    // A fragment that is started now has no exchange under way yet if overlap is 0.
    if (steps == own_->options.overlap && (steps == 0 || under_way(f))) due.apply.push_back(f);
  }
  return due;
}

void LocalSteps::start(std::size_t fragment, std::span<const float> parameters) {
  Fragment& own = own_->at(fragment, parameters.size());
  Numbers& numbers = own.numbers;
  if (numbers.under_way) {
    refuse(
        fmt::format("the last exchange of fragment {} must be applied before the next is "
                    "started",
                    fragment));
  }
  numbers.start.assign(parameters.begin(), parameters.end());
  numbers.values.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    numbers.values[i] = numbers.anchor[i] - parameters[i];
  }
  own.pending = own_->session.submit(own.bucket, numbers.values);
  numbers.started = own_->step;
  numbers.under_way = true;
}

bool LocalSteps::wait(std::size_t fragment, Seconds limit) {
  const auto& pending = own_->at(fragment).pending;
  return !pending || pending->wait_for(limit) == std::future_status::ready;
}

Report LocalSteps::apply(std::size_t fragment, std::span<float> parameters) {
  Fragment& own = own_->at(fragment, parameters.size());
  Numbers& numbers = own.numbers;
  if (!numbers.under_way) refuse(fmt::format("no exchange of fragment {} was started", fragment));
  own_->arrive(fragment);
  own_->outer.apply(numbers.anchor, numbers.velocity, numbers.values);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i] = numbers.anchor[i] + (parameters[i] - numbers.start[i]);
  }
  numbers.under_way = false;
  numbers.values = {};
  numbers.start = {};
  return std::exchange(own.report, {});
}

std::vector<std::byte> LocalSteps::save_bytes() {
  if (!own_->failure.empty()) {
    throw Error(ErrorCode::bad_state,
                fmt::format("local steps can't be saved after an exchange that failed ({}); "
                            "continue from the last saved state",
                            own_->failure));
  }
  for (std::size_t f = 0; f < fragments(); ++f) own_->arrive(f);
  SessionState state;
  state.world = own_->session.size();
  state.rank = own_->session.rank();
  state.settings = own_->settings;
  for (std::size_t f = 0; f < fragments(); ++f) {
    Numbers& numbers = own_->at(f).numbers;
    state.buckets[static_cast<std::uint32_t>(f)] = {
        .step = own_->step,
        .elements = numbers.anchor.size(),
        .fields = save_fields([&](Archive& archive) { numbers.show(archive); },
                              {.rank = state.rank, .world = state.world})};
  }
  return encode_state(std::move(state));
}

void LocalSteps::load_bytes(std::span<const std::byte> bytes) {
  const SessionState state = decode_state(bytes, "saved local steps");
  own_->check(state);
  std::vector<Numbers> loaded(fragments());
  for (std::size_t f = 0; f < fragments(); ++f) {
    const auto id = static_cast<std::uint32_t>(f);
    load_fields([&](Archive& archive) { loaded[f].show(archive); }, state.buckets.at(id), id,
                {.rank = state.rank, .world = state.world});
    const Numbers& current = own_->at(f).numbers;
    const std::size_t exchanged = loaded[f].under_way ? current.anchor.size() : 0;
    if (loaded[f].velocity.size() != current.velocity.size() ||
        loaded[f].values.size() != exchanged || loaded[f].start.size() != exchanged) {
      throw Error(
          ErrorCode::bad_state,
          fmt::format("saved local steps: the fields of fragment {} contradict one another; use "
                      "another checkpoint",
                      f));
    }
  }
  own_->wait_for_all();
  for (std::size_t f = 0; f < fragments(); ++f) {
    Fragment& fragment = own_->at(f);
    fragment.pending.reset();
    fragment.report = {};
    fragment.numbers = std::move(loaded[f]);
  }
  own_->step = state.buckets.begin()->second.step;
  own_->failure.clear();
}

}  // namespace thinreduce
