module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}, %arg1: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<2x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<8x4xf32>, tensor<4x8xf32>) {
    %0:7 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"a"}, {"b"}]>, <@mesh, [{"b"}]>] out_shardings=[<@mesh, [{"a"}, {"b"}]>, <@mesh, [{}, {"b"}]>, <@mesh, [{"a"}, {}]>, <@mesh, [{"b"}, {"a"}]>, <@mesh, [{}, {}]>, <@mesh, [{"b", "a"}, {}]>, <@mesh, [{"a"}, {"b"}]>] manual_axes={"a", "b"} (%arg2: tensor<2x4xf32>, %arg3: tensor<4xf32>) {
      %1 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
      %2 = stablehlo.multiply %arg2, %1 : tensor<2x4xf32>
      %3 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %20 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %20 : tensor<f32>
      }) : (tensor<2x4xf32>) -> tensor<2x4xf32>
      %4 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<2x8xf32>
      %5 = "stablehlo.reduce_scatter"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %20 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %20 : tensor<f32>
      }) : (tensor<2x4xf32>) -> tensor<2x2xf32>
      %6 = "stablehlo.all_reduce"(%arg2) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %20 = stablehlo.maximum %arg4, %arg5 : tensor<f32>
        stablehlo.return %20 : tensor<f32>
      }) : (tensor<2x4xf32>) -> tensor<2x4xf32>
      %7 = "stablehlo.all_to_all"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 4, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<2x4xf32>) -> tensor<1x8xf32>
      %8 = stablehlo.reshape %7 : (tensor<1x8xf32>) -> tensor<2x4xf32>
      %9 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, source_target_pairs = dense<[[0, 1], [1, 3], [3, 0]]> : tensor<3x2xi64>}> : (tensor<2x4xf32>) -> tensor<2x4xf32>
      %10 = stablehlo.partition_id : tensor<ui32>
      %c = stablehlo.constant dense<2> : tensor<ui32>
      %11 = stablehlo.remainder %10, %c : tensor<ui32>
      %12 = stablehlo.convert %11 : (tensor<ui32>) -> tensor<f32>
      %13 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
      %14 = stablehlo.add %9, %13 : tensor<2x4xf32>
      sdy.return %2, %3, %4, %5, %6, %8, %14 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x8xf32>, tensor<2x2xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    } : (tensor<4x8xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, tensor<2x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<8x4xf32>, tensor<4x8xf32>)
    return %0#0, %0#1, %0#2, %0#3, %0#4, %0#5, %0#6 : tensor<4x8xf32>, tensor<2x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<8x4xf32>, tensor<4x8xf32>
  }
}
