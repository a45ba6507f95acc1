// How a team is made.
#pragma once

#include <memory>

#include "team.h"

namespace tiny_llm {

/// A team of `size` members, the caller among them.
std::unique_ptr<Team> make_team(int size);

}  // namespace tiny_llm
