// The fields of a plan, by the names under which the command line and the Python package show them.
#pragma once

#include "thinreduce/plan/plan.h"

namespace thinreduce {

// Each function calls field(name, value) per field, in the order in which they are shown.

template <typename Field>
void for_fields(const PlanCandidate& candidate, const Field& field) {
  field("spec", candidate.spec);
  field("tried", candidate.tried);
  field("allowed", candidate.allowed);
  if (!candidate.tried) return;  // nothing was measured
  field("error", candidate.error);
  field("seconds", candidate.seconds);
  field("busy_seconds", candidate.busy);
  field("wire_seconds", candidate.wire);
  field("latency_seconds", candidate.latency);
  field("bytes_sent", candidate.bytes);
}

template <typename Field>
void for_fields(const PlanBucket& bucket, const Field& field) {
  field("id", bucket.id);
  field("elements", bucket.elements);
  field("ready_seconds", bucket.ready);
  field("spec", bucket.spec);
  field("candidates", bucket.candidates);
}

template <typename Field>
void for_fields(const Plan& plan, const Field& field) {
  field("link", plan.link.to_string());
  field("bytes_per_second", plan.link.bytes_per_second);
  field("latency_seconds", plan.link.latency.count());
  field("predicted_seconds", plan.predicted);
  field("fp32_seconds", plan.uncompressed);
  field("measured_seconds", plan.measured);
  field("trials", plan.trials);
  field("changes", plan.changes);
  field("reason", plan.reason);
  field("buckets", plan.buckets);
}

}  // namespace thinreduce
