#pragma once  // __dp4a is in emulated_math.h
