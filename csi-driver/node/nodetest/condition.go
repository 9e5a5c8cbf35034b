// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Condition of an answer, as a caller of CSI 1.9 reads what server.Problems writes: there is message VolumeCondition
// {bool abnormal = 1; string message = 2;} as field 2 of it.
func Condition(answer proto.Message) (abnormal bool, message string, err error) {
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, of string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
		if of != "" {
			f.TypeName = &of
		}
		return f
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("csi19.proto"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("VolumeCondition"), Field: []*descriptorpb.FieldDescriptorProto{
				field("abnormal", 1, descriptorpb.FieldDescriptorProto_TYPE_BOOL, ""),
				field("message", 2, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""),
			}},
			{Name: proto.String("Answer"), Field: []*descriptorpb.FieldDescriptorProto{
				field("volume_condition", 2, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".VolumeCondition"),
			}},
		},
	}, nil)
	if err != nil {
		return false, "", err
	}
	data, err := proto.Marshal(answer)
	if err != nil {
		return false, "", err
	}
	read := dynamicpb.NewMessage(file.Messages().ByName("Answer"))
	if err := proto.Unmarshal(data, read); err != nil {
		return false, "", err
	}
	of := read.Descriptor().Fields().ByName("volume_condition")
	if !read.Has(of) {
		return false, "", fmt.Errorf("the answer has no condition: %v", answer)
	}
	condition := read.Get(of).Message()
	get := func(name protoreflect.Name) protoreflect.Value {
		return condition.Get(condition.Descriptor().Fields().ByName(name))
	}
	return get("abnormal").Bool(), get("message").String(), nil
}
