// Lets threads of the engine call Python often.
#pragma once

#include <Python.h>

namespace thinreduce::python {

// Python's record of a thread of the engine. Without it every call makes one, with memory that
// comes from the kernel, which takes longer than the call itself.
class ThreadState {
 public:
  ThreadState() : gil_(PyGILState_Ensure()), state_(PyEval_SaveThread()) {}
  ~ThreadState() {
    if (Py_IsInitialized() == 0) return;
    PyEval_RestoreThread(state_);
    PyGILState_Release(gil_);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  // Makes one that lasts as long as the thread, unless Python has started the thread.
  static void keep() {
    if (PyGILState_GetThisThreadState() != nullptr) return;
    static thread_local const ThreadState kept;
    static_cast<void>(kept);
  }

 private:
  PyGILState_STATE gil_;
  PyThreadState* state_;
};

}  // namespace thinreduce::python
