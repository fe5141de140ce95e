#pragma once  // everything is in emulated.h
