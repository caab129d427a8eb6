# What bench/rpc.cpp calls.
@0xb9c1f7a2d4e85036;

interface Echo {
  call @0 (request :Data) -> (answer :Data);
}
