// The settings of a session: checked, as a text, and compared between the ranks.
#pragma once

#include <string>
#include <vector>

#include "thinreduce/collective/exchange.h"
#include "thinreduce/engine/session.h"
#include "thinreduce/method/spec.h"

namespace thinreduce {

// Returns the settings that must be equal on all ranks and in a resumed run.
[[nodiscard]] std::string settings_text(const Spec& spec, const SessionOptions& options);
// Returns `settings` and all else that must be equal on all ranks at the start, such as the
// version, because payloads and messages may differ between versions. Throws Error{bad_input}.
[[nodiscard]] std::string start_text(const std::string& settings, const SessionOptions& options);

// Throws Error{bad_spec}, also for momentum that the optimizer might apply as well.
[[nodiscard]] Spec checked_spec(const std::string& text, const SessionOptions& options);
// Throws Error{bad_spec} for a spec with which local steps make no sense: signs are no difference
// that an outer step could take.
void refuse_signs(const Spec& spec);
// Throws Error{bad_input}.
[[nodiscard]] int checked_threads(const SessionOptions& options);

// Returns the text of every rank, in rank order.
[[nodiscard]] std::vector<std::string> gather_texts(Exchange& exchange, const std::string& own);
// Throws the same Error{mismatch} on all ranks when their settings differ.
void require_equal(const std::vector<std::string>& texts);

}  // namespace thinreduce
