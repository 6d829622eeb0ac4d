#include "thinreduce/engine/session.h"

#include <fmt/format.h>

#include <utility>

#include "thinreduce/engine/advice.h"
#include "thinreduce/engine/agreement.h"
#include "thinreduce/engine/session_implementation.h"
#include "thinreduce/error.h"

namespace thinreduce {
namespace {

Error refusal_of(const BucketLayout& layout, const Refusal& refusal) {
  return Error(ErrorCode::bad_input,
               fmt::format("bucket {}: {}", layout.id, describe_refusal(refusal, layout.elements)));
}

}  // namespace

Session::Session(std::shared_ptr<Transport> transport, const SessionOptions& options)
    : own_(std::make_unique<Implementation>(std::move(transport), options)) {}

Session::~Session() {
  if (!own_->here()) static_cast<void>(own_.release());
}

int Session::rank() const {
  return own_->transport().rank();
}
int Session::size() const {
  return own_->transport().size();
}

const BucketLayout& BucketHandle::layout() const {
  return bucket_->layout;
}
std::string BucketHandle::spec() const {
  return bucket_->spec.full_text();
}

BucketHandle Session::add_bucket(BucketLayout layout) const {
  return {own_->add_bucket(std::move(layout)), this};
}

std::future<Report> Session::submit(const BucketHandle& bucket, std::span<float> values,
                                    std::span<const float> second_moment) {
  Flights& flights = own_->flights();
  own_->take_part();
  const std::size_t elements = bucket.layout().elements;
  Job job;
  job.bucket = bucket.bucket_;
  job.submitted = own_->transport().hand_over();
  if (bucket.session_ != this) {
    job.refusal = {.why = Numbers::foreign_handle};
  } else if (values.size() != elements) {
    job.refusal = {.why = Numbers::gradient_missized, .given = values.size()};
  } else if (!second_moment.empty() && second_moment.size() != elements) {
    job.refusal = {.why = Numbers::second_moment_missized, .given = second_moment.size()};
  }
  if (!job.refusal) {
    job.values = values;
    job.second_moment = second_moment;
    return flights.submit(std::move(job));
  }
  // The other ranks wait for this rank's statement about the bucket: it tells them of the refusal.
  const Error error = refusal_of(bucket.layout(), *job.refusal);
  static_cast<void>(flights.submit(std::move(job)));
  throw error;
}

void Session::decline(const std::string& reason) {
  // A planner counts the buckets of a step by their ids, and this rank has none.
  if (own_->planner()) return abandon(reason);
  Job job;
  job.bucket = own_->add_bucket({.id = kNoBucket, .elements = 0, .tensors = {}, .spec = "fp32"});
  job.submitted = own_->transport().hand_over();
  job.refusal = {.why = Numbers::declined, .reason = reason};
  static_cast<void>(own_->flights().submit(std::move(job)));
}

Report Session::reduce(std::uint32_t id, std::span<float> values,
                       std::span<const float> second_moment) {
  auto found = shapeless_.find(id);
  if (found == shapeless_.end() || found->second.layout().elements != values.size()) {
    const auto bucket = add_bucket({.id = id, .elements = values.size(), .tensors = {}});
    found = shapeless_.insert_or_assign(id, bucket).first;
  }
  Report report = submit(found->second, values, second_moment).get();
  static_cast<void>(own_->transport().now());  // a virtual clock must know that this rank waited
  return report;
}

Report Session::finish_step() {
  own_->drain();
  return own_->flights().take_reports();
}
void Session::begin_step() {
  own_->begin_step();
}
void Session::undo_step() {
  own_->undo_step();
}
std::vector<int> Session::commit_step(bool leave) {
  return own_->commit_step(leave);
}

void Session::broadcast(int root, std::vector<std::byte>& message) {
  own_->broadcast(root, message);
}

Reconfiguration Session::reconfigure(std::shared_ptr<Transport> transport) {
  const auto started = Clock::now();
  own_->drain();
  try {
    auto next = std::make_unique<Implementation>(transport, own_->options());
    Reconfiguration outcome = next->continue_from(*own_);
    own_ = std::move(next);
    outcome.seconds = Seconds(Clock::now() - started).count();
    return outcome;
  } catch (const Error& error) {
    // The others must not wait for this rank. A mismatch they find themselves.
    if (error.code() != ErrorCode::mismatch) transport->abandon(error.what());
    throw;
  } catch (...) {
    const Error error = current_error("a change of the world");
    transport->abandon(error.what());
    throw error;
  }
}
void Session::forget(std::uint32_t id) {
  own_->forget(id);
  shapeless_.erase(id);
}
void Session::save(const std::filesystem::path& file) {
  write_state(file, own_->save());
}
void Session::load(const std::filesystem::path& file) {
  own_->load(read_state(file), state_file_name(file));
}
std::vector<std::byte> Session::save_bytes() {
  return encode_state(own_->save());
}
void Session::load_bytes(std::span<const std::byte> bytes) {
  const std::string name = "saved state";
  own_->load(decode_state(bytes, name), name);
}
Plan Session::plan() const {
  return own_->planner() ? own_->planner()->plan() : Plan{};
}
void Session::abandon(const std::string& reason) {
  own_->flights().abandon(reason);
}

}  // namespace thinreduce
