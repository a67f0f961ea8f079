module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]>
  func.func public @main(%arg0: tensor<4x6x8xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}, {}]>}, %arg1: tensor<8x4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}, {}]>}, %arg2: tensor<4x4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}, {}]>}, %arg3: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp", "tp"}, {}]>}) -> (tensor<4x6x8xf32> {jax.result_info = "", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}, {}]>}, tensor<4x6x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}, {"tp"}]>}) {
    %0 = stablehlo.convert %arg1 : (tensor<8x4x4xf32>) -> tensor<8x4x4xbf16>
    %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xbf16>, tensor<8x4x4xbf16>) -> tensor<4x6x4x4xbf16>
    %2 = sdy.sharding_constraint %1 <@mesh, [{"dp"}, {}, {"tp"}, {}]> : tensor<4x6x4x4xbf16>
    %3 = stablehlo.convert %2 : (tensor<4x6x4x4xbf16>) -> tensor<4x6x4x4xf32>
    %4 = stablehlo.tanh %3 : tensor<4x6x4x4xf32>
    %5 = stablehlo.dot_general %4, %arg2, contracting_dims = [2, 3] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x4x4xf32>, tensor<4x4x8xf32>) -> tensor<4x6x8xf32>
    %6 = stablehlo.convert %arg0 : (tensor<4x6x8xbf16>) -> tensor<4x6x8xf32>
    %7 = stablehlo.add %5, %6 : tensor<4x6x8xf32>
    %8 = stablehlo.dot_general %7, %arg3, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x6x8xf32>, tensor<16x8xf32>) -> tensor<4x6x16xf32>
    return %7, %8 : tensor<4x6x8xf32>, tensor<4x6x16xf32>
  }
}
