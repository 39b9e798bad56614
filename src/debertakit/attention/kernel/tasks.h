// The code that is compiled once per instruction set, each time in another namespace and with other constants:
//   kLanes    floats per vector in the elementwise loops
//   kVector   floats per register in the products
//   kStrip    rows of A whose sums fit into registers
// Pragmas select the instructions for the functions below them, and templates would belong to only one of the pragmas.
// That is why this file is included several times instead. It uses no std containers: their code would be shared.

#include "vectors.h"
#include "products.h"
#include "layout.h"
#include "positions.h"
#include "shared.h"
#include "forward.h"
#include "backward.h"
#include "hash.h"
