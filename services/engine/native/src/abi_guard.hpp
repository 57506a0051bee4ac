// Nothing throws across the C interface: a call that failed gives -1, and pagemesh_last_error says why.
#pragma once

#include <exception>
#include <string>

namespace pagemesh {

inline thread_local std::string last_error;

template <class Call>
int guard(Call call) {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

}  // namespace pagemesh
