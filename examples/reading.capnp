@0xd2c5b1a4f0e39a77;

struct Reading {
  name @0 :Text;
  samples @1 :List(Float64);
  image @2 :Data;
}
